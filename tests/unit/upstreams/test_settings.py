"""Tests of settings, plan and limits that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.canary.start import read_together
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import CanaryError
from pipelines.upstreams.__main__ import main
from pipelines.upstreams.service import Service
from pipelines.upstreams.settings import DEFAULT_PLAN, UpstreamsSettings

OLD, NEW = ({"name": name, "url": "http://127.0.0.1:1"} for name in ("old", "new"))


def write(folder: Path, **settings: Any) -> Path:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump({"name": "service", "stable": OLD, **settings}))
    return path


def test_the_defaults_fit_together() -> None:
    _, limits = read_together(DEFAULT_PLAN)
    assert limits.not_judged == ("acceptance_rate", "memory", "cpu_per_token")


def test_two_servers_have_two_names(tmp_path: Path) -> None:
    with pytest.raises(CanaryError, match="both have the name old"):
        UpstreamsSettings.read(write(tmp_path, candidate=OLD))


def test_the_server_in_service_must_be_named(tmp_path: Path) -> None:
    state = tmp_path / "service"
    state.mkdir()
    table = {
        **{"format": 2, "generation": 8, "canary_id": "", "salt": "c1", "stable": "promoted"},
        **{"candidate": "", "candidate_weight": 0.0, "shadow": None, "replays_match": "stable"},
        **{"bands": {"medium_from": 4, "high_from": 8}, "lease_until_s": 0.0, "slow_after_s": 1.0},
    }
    (state / "arms.json").write_text(json.dumps(table))
    path = write(tmp_path, candidate=NEW)
    with pytest.raises(CanaryError, match="does not name promoted, which gets requests"):
        Service(UpstreamsSettings.read(path), path, state, FrontDoorSettings(), again=False)


def test_a_fleet_is_named_by_the_addresses_of_its_servers(tmp_path: Path) -> None:
    servers = ("10.0.0.7:8001", "pod-1.draftproof:8001", "[fd00::1]:8001")
    fleet = {"name": "ours", "servers": [*servers], "server_name": "servers:8001"}
    stable = UpstreamsSettings.read(write(tmp_path, stable=fleet)).stable
    assert stable.is_fleet and (stable.servers, stable.server_name) == (servers, "servers:8001")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"timeout": 3}, {"url": "ftp://host"}, {"key_file": "missing"}, {"name": "a/b"}),
        *({"url": ""}, {"servers": ["a:8001"]}, {"url": "", "servers": ["http://a:8001"]}),
        *({"url": "", "servers": "a:8001"}, {"url": "", "servers": ["a"]}),
        *({"url": "", "server_name": name} for name in ("a", "a..b:80", f"{'a' * 64}.b:80")),
        {"url": "", "servers": ["a:8001"], "prefix_tokens": 0},
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(
    wrong: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--settings", str(write(tmp_path, stable={**OLD, **wrong}))]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "Traceback" not in said
