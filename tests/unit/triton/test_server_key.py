"""Tests of a server's key: models require it, and operators' programs find it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.client.connection import FILE_VARIABLE, key_of_environment
from pipelines.command_line.running_server import known_key
from pipelines.errors import InvalidRequestError, ServerStartError
from pipelines.triton.backend.header import read_header, server_key
from tests.support.fake_triton import SERVER_KEY, FakeRequest


@pytest.mark.parametrize(
    "parameters",
    [
        *({"draftproof_key": value} for value in ("", "guess", SERVER_KEY[:-1], SERVER_KEY + "x")),
        *({"draftproof_key": value} for value in (None, True, 1, [SERVER_KEY], "é", "\ud800")),
        {"draftproof_key": None, "draftproof_ping": True},
    ],
)
def test_models_refuse_a_request_without_the_key(parameters: dict[str, Any]) -> None:
    request = FakeRequest({}, parameters=json.dumps(parameters))
    with pytest.raises(InvalidRequestError, match="did not come through the gateway") as refused:
        read_header(request, (), server_key())
    assert SERVER_KEY not in str(refused.value)


def test_with_the_key_a_ping_is_told_from_a_request() -> None:
    assert not read_header(FakeRequest({}), (), server_key()).is_ping
    assert read_header(FakeRequest({}, parameters='{"draftproof_ping": true}'), (), server_key()).is_ping


def test_a_model_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_KEY", "")
    with pytest.raises(ServerStartError, match="DRAFTPROOF_KEY is not set"):
        server_key()
    monkeypatch.delenv("DRAFTPROOF_KEY")
    with pytest.raises(ServerStartError, match="DRAFTPROOF_KEY is not set"):
        server_key()


def test_operators_name_the_file_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert key_of_environment() == ""
    (tmp_path / "key").write_text("secret\n")
    with known_key(tmp_path):
        assert key_of_environment() == "secret"
    assert key_of_environment() == "", "it is known for as long as the server is asked"
    monkeypatch.setenv(FILE_VARIABLE, "before")
    with pytest.raises(KeyError), known_key(tmp_path):
        raise KeyError
    with pytest.raises(InvalidRequestError, match="before"):
        key_of_environment()
    for content in (b"\xff", None):
        file = tmp_path / "other"
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        monkeypatch.setenv(FILE_VARIABLE, str(file))
        with pytest.raises(InvalidRequestError, match="key of the server cannot be read"):
            key_of_environment()
