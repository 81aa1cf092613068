"""The rendered compose file and Prometheus' files.

No package of standing carries the schema of compose files: the keys used are checked against a list.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from build.deployment import render_deployment
from build.recipe import REPOSITORY_ROOT, Recipe
from pipelines.serving import gauges
from tests.deployment_files import RECIPES, alerts, compose, pod_templates, selectors, user_of_the_image

# https://github.com/compose-spec/compose-spec: 05-services.md, deploy.md, build.md. Those used here.
COMPOSE_SERVICE = {
    *("build", "cap_drop", "command", "depends_on", "deploy", "healthcheck", "image", "ports", "profiles"),
    *("read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs", "ulimits", "user"),
    *("volumes", "working_dir"),
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
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    server = document["services"]["server"]
    user = user_of_the_image()
    assert server["user"] == f"{user}:{user}"
    run = f"{REPOSITORY_ROOT}/.run/{recipe.name}"
    bound = {mount["target"]: mount for mount in server["volumes"]}
    assert set(bound) == {str(REPOSITORY_ROOT), f"{run}/model_repository", f"{run}/launch.json"}
    assert all(mount["source"] == path and mount["read_only"] for path, mount in bound.items())
    assert [text.partition(":")[0] for text in server["tmpfs"]] == ["/tmp", run]
    assert f"uid={user}" in server["tmpfs"][1]
    build = server["build"]
    assert (Path(build["context"]) / "run.txt").is_file()
    assert f" AS {build['target']}\n" in Path(build["dockerfile"]).read_text()
    devices = server["deploy"]["resources"].get("reservations", {}).get("devices", [])
    assert bool(devices) == (recipe.runtime == "tensorrt_llm")
    assert all("gpu" in device["capabilities"] for device in devices)
    # The embedded backend's program is laid out in the run directory; Docker's tmpfs is noexec unless told.
    assert (",exec" in server["tmpfs"][1] or ":exec" in server["tmpfs"][1]) == (recipe.runtime == "embedded")


def test_alerts_parse_and_name_metrics_that_the_server_has(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    rules = alerts(directory)
    assert {"DraftproofAcceptanceLow", "DraftproofQueueFull", "DraftproofNotReady"} <= set(rules)
    for rule in rules.values():
        names = {selector.name for selector in selectors(rule["expr"])}
        assert names
        assert names <= {*gauges._DESCRIPTIONS, "up"}
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert f">= {recipe.serving.max_queue_size}" in rules["DraftproofQueueFull"]["expr"]


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
