"""The rendered compose file and Prometheus' files.

No package of standing carries the schema of compose files: the keys used are checked against a list.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from build.deployment import PYTHON, render_deployment
from build.recipe import REPOSITORY_ROOT, Recipe
from pipelines.canary.__main__ import _parse
from pipelines.canary.candidate import STABLE_MODEL
from pipelines.serving import gauges
from tests.deployment_files import (
    RECIPES,
    alerts,
    compose,
    groupings,
    pod_templates,
    selectors,
    user_of_the_image,
)

# https://github.com/compose-spec/compose-spec: 05-services.md, deploy.md, build.md. Those used here.
COMPOSE_SERVICE = {
    *("build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment", "healthcheck"),
    *("image", "network_mode", "ports", "profiles", "read_only", "restart", "security_opt", "shm_size"),
    *("stop_grace_period", "tmpfs", "ulimits", "user", "volumes", "working_dir"),
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
    run = f"{REPOSITORY_ROOT}/.run/{recipe.name}"
    for service in (server, canary):
        bound = {mount["target"]: mount for mount in service["volumes"]}
        assert set(bound) == {str(REPOSITORY_ROOT), run}
        assert all(mount["source"] == path for path, mount in bound.items())
        assert [path for path, mount in bound.items() if not mount.get("read_only")] == [run]
        assert service["tmpfs"] == ["/tmp"]
    build = server["build"]
    assert (Path(build["context"]) / "run.txt").is_file()
    assert f" AS {build['target']}\n" in Path(build["dockerfile"]).read_text()
    devices = server["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert bool(devices) == (recipe.runtime == "tensorrt_llm")
    assert all("gpu" in device["capabilities"] for device in devices)


@pytest.mark.parametrize("uid", [1000, 0])
def test_services_run_as_the_owner_of_what_they_write(
    uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never as root, whoever rendered."""
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


def test_alerts_parse_and_name_metrics_that_the_server_has(case: tuple[Recipe, Path]) -> None:
    rules = alerts(case[1])
    assert {"DraftproofAcceptanceLow", "DraftproofQueueFull", "DraftproofNotReady"} <= set(rules)
    for rule in rules.values():
        names = {selector.name for selector in selectors(rule["expr"])}
        assert names
        assert names <= {*gauges._DESCRIPTIONS, "up"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_no_alert_sums_over_servers_or_over_the_pairs_of_a_rollout(case: tuple[Recipe, Path]) -> None:
    """A candidate has the figures of the stable pair, under another name of the model."""
    grouped = {name: groupings(rule["expr"]) for name, rule in alerts(case[1]).items()}
    assert {labels for found in grouped.values() for labels in found} == {("instance", "model")}
    for name in ("DraftproofAcceptanceLow", "DraftproofDraftFailing", "DraftproofQueueFull"):
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
    assert annotations["prometheus.io/port"] == "8002"
