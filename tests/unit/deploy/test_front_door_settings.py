"""Tests of the settings of the front door."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.deploy.front_door import FrontDoorSettings, Tls
from pipelines.errors import ServerStartError


def read(tmp_path: Path, text: str) -> FrontDoorSettings:
    path = tmp_path / "front_door.yaml"
    path.write_text(text)
    return FrontDoorSettings.read(path)


def test_without_a_file_it_listens_on_loopback_without_keys() -> None:
    settings = FrontDoorSettings.read(None)
    assert (settings.address, settings.keys, settings.tls, settings.cors_origins) == (
        "127.0.0.1",
        "",
        None,
        (),
    )
    assert settings.url(9000) == "http://127.0.0.1:9000"


def test_paths_count_from_the_folder_of_the_file(tmp_path: Path) -> None:
    text = "keys: keys.json\ntls: {certificate: /certs/tls.crt, key: tls.key}\naddress: '::'\n"
    settings = read(tmp_path, text)
    assert settings.keys == str(tmp_path.resolve() / "keys.json")
    assert settings.tls == Tls("/certs/tls.crt", str(tmp_path.resolve() / "tls.key"))
    assert settings.url(9000) == "https://[::1]:9000"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("key: a", "did you mean keys"),
        ("keys: 3", "keys"),
        ("max_body_bytes: 0", "max_body_bytes"),
        ("write_timeout_s: .inf", "write_timeout_s"),
        ("tls: {certificate: a}", "tls.key"),
        ("address: example.org\nkeys: a", "not an IP address"),
        ("address: 0.0.0.0", "needs API keys"),
        ("address: '::'", "needs API keys"),
        ("- a", "mapping"),
        ("{", "cannot be read"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ServerStartError, match=r"front_door\.yaml") as refused:
        read(tmp_path, text)
    assert reason in str(refused.value)


def test_a_port_that_is_taken_is_refused() -> None:
    with FrontDoorSettings().listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"cannot listen on .*:{port}: .*--openai-port"):
            FrontDoorSettings().listen(port)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="cannot be read"):
        FrontDoorSettings.read(tmp_path / "absent.yaml")
