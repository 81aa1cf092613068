"""Tests of the rendered compose file and Prometheus files.

No well-known package has the schema of compose files, so their keys are checked against a list.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from build.deployment import PYTHON, SETTINGS, render_deployment
from build.package import PACKAGES
from build.recipe import REPOSITORY_ROOT, Recipe
from build.rendering.image import CODE
from pipelines.canary.__main__ import _parse
from pipelines.canary.controller.candidate import STABLE_MODEL
from pipelines.deploy.server import KILL_AFTER_S
from pipelines.triton.backend import gauges
from pipelines.triton.gateway.metrics import GatewayMetrics
from pipelines.triton.gateway.open_calls import OpenCalls
from tests.support.deployment_files import (
    RECIPES,
    alerts,
    compose,
    groupings,
    pod_templates,
    selectors,
    user_of_the_image,
)
from tests.unit.gateway.test_metrics import supervised

# https://github.com/compose-spec/compose-spec: 05-services.md, deploy.md, build.md. Only the keys used here.
COMPOSE_SERVICE = {
    *("build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment", "healthcheck"),
    *("image", "network_mode", "ports", "profiles", "read_only", "restart", "security_opt", "shm_size"),
    *("stop_grace_period", "stop_signal", "tmpfs", "ulimits", "user", "volumes", "working_dir"),
}
COMPOSE_INNER = {
    "build": {"context", "dockerfile", "target", "args"},
    "healthcheck": {"test", "interval", "timeout", "retries", "start_period"},
}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


def test_the_compose_file_is_confined_in_the_same_way(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    if recipe.tensorrt_llm.num_nodes > 1:
        assert not (directory / "compose.yaml").exists(), "compose is for one machine"
        return
    document = compose(directory)
    assert set(document) == {"name", "services", "volumes"}
    for service in document["services"].values():
        assert set(service) <= COMPOSE_SERVICE
        for key, known in COMPOSE_INNER.items():
            assert set(service.get(key, {})) <= known
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    server, canary = (document["services"][name] for name in ("server", "canary"))
    run = f"{CODE}/.run/{recipe.name}"
    for service in (server, canary):
        bound = {mount["target"]: mount for mount in service["volumes"]}
        keys = bound.pop("/etc/draftproof/keys", None)
        assert (keys is None) == (service is canary)
        assert keys is None or keys["read_only"]
        assert {path: mount["source"] for path, mount in bound.items()} == {
            "/packages": str(PACKAGES),
            SETTINGS: ".",
            run: str(directory.parent / "container" / recipe.name),
        }
        assert Path(bound[run]["source"]).is_dir(), "else Docker makes it, as root"
        assert [path for path, mount in bound.items() if not mount.get("read_only")] == [run]
        assert service["tmpfs"] == ["/tmp"]
    command = server["command"]
    assert command[command.index("--front-door") + 1] == f"{SETTINGS}/front_door.yaml"
    assert "127.0.0.1:9000:8103" in server["ports"]
    for each in (server, document["services"]["haproxy"]):
        assert int(each["stop_grace_period"].removesuffix("s")) > KILL_AFTER_S
    build = server["build"]
    assert Path(build["context"]) == REPOSITORY_ROOT
    assert f" AS {build['target']}\n" in Path(build["dockerfile"]).read_text()
    devices = server["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert bool(devices) == (recipe.runtime == "tensorrt_llm")
    assert all("gpu" in device["capabilities"] for device in devices)


@pytest.mark.parametrize("uid", [1000, 0])
def test_services_run_as_the_owner_of_what_they_write(
    uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never run as root, whoever rendered the file."""
    monkeypatch.setattr("os.getuid", lambda: uid)
    monkeypatch.setattr("os.getgid", lambda: uid)
    services = compose(render_deployment(RECIPES["embedded"], tmp_path))["services"]
    user = uid or user_of_the_image()
    assert services["server"]["user"] == services["canary"]["user"] == f"{user}:{user}"
    assert services["server"]["environment"]["HOME"] == "/tmp"  # the image may not know the user


def test_a_rollout_is_a_service_of_its_own_that_asks_the_server_on_its_loopback(
    case: tuple[Recipe, Path],
) -> None:
    recipe, directory = case
    if recipe.tensorrt_llm.num_nodes > 1:
        return
    canary = compose(directory)["services"]["canary"]
    assert canary["profiles"] == ["canary"]
    assert canary["network_mode"] == "service:server"
    command = [*canary["entrypoint"], "--candidate", "new"]
    assert command[:3] == [PYTHON, "-m", "pipelines.canary"]
    options = _parse(command[3:])
    assert options.command.__name__ == "_start"
    assert (options.recipe, options.candidate, options.host) == (recipe.name, "new", "127.0.0.1")


def _published() -> set[str]:
    """Return the names of all metrics of models and gateway; a histogram is read by its count."""
    front_door: Any = SimpleNamespace(answers=True, num_restarts=0)
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(supervised(), OpenCalls(), front_door))
    of_gateway = re.findall(r"^# TYPE (\S+) ", generate_latest(registry).decode(), re.MULTILINE)
    return {*gauges._DESCRIPTIONS, "draftproof_ttft_seconds_count", *of_gateway}


def test_alerts_parse_and_name_metrics_that_the_server_has(case: tuple[Recipe, Path]) -> None:
    rules = alerts(case[1])
    assert "DraftproofFrontDoorSilent" in rules
    assert {"DraftproofAcceptanceLow", "DraftproofModelSilent", "DraftproofTritonRestarted"} <= set(rules)
    for rule in rules.values():
        names = {selector.name for selector in selectors(rule["expr"])}
        assert names
        assert names <= {*_published(), "up"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_no_alert_sums_over_servers_or_over_the_pairs_of_a_rollout(case: tuple[Recipe, Path]) -> None:
    """A candidate has the same metrics as the stable pair, under another model name."""
    grouped = {name: groupings(rule["expr"]) for name, rule in alerts(case[1]).items()}
    assert {labels for found in grouped.values() for labels in found} == {("instance", "model")}
    for name in ("DraftproofAcceptanceLow", "DraftproofDraftRefuses", "DraftproofModelSilent"):
        assert grouped[name]
    [absent] = [
        selector
        for selector in selectors(alerts(case[1])["DraftproofNotReady"]["expr"])
        if selector.name == "draftproof_requests_waiting"
    ]
    matched = {matcher.name: matcher.value for matcher in absent.matchers.matchers}
    assert matched["model"] == STABLE_MODEL, "a candidate that is loaded does not stand for the server's own"


def test_prometheus_reads_the_rules_and_the_port_of_the_server(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    document = yaml.safe_load((directory / "prometheus" / "prometheus.yml").read_text())
    assert (directory / "prometheus" / document["rule_files"][0]).is_file()
    [job] = document["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in alerts(directory)["DraftproofDown"]["expr"]
    if recipe.tensorrt_llm.num_nodes == 1:
        service, port = job["static_configs"][0]["targets"][0].split(":")
        assert any(text.endswith(f":{port}") for text in compose(directory)["services"][service]["ports"])
    annotations = pod_templates(directory)["server"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "8102"
