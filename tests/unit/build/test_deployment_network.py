"""Tests of the network in rendered deployment files: who can reach what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from build.deployment import PYTHON, render_deployment
from build.recipe import Recipe
from build.rendering.templates import TEMPLATES as REPOSITORY_TEMPLATES
from build.rendering.templates import config_templates
from pipelines.deploy.endpoint import DRAIN_S, EXIT_TIMEOUT_S
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import KILL_AFTER_S
from pipelines.deploy.triton.launch import Launch
from tests.support.deployment_files import (
    RECIPES,
    compose,
    container,
    manifest,
    manifests,
    pod_templates,
    proxy,
)

ROUTER_READY = "/v2/models/router/ready"


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


def probed(probe: dict[str, Any], box: dict[str, Any]) -> str:
    """Return the gateway path that a container's probe requests."""
    if "httpGet" in probe:
        [port] = [each for each in box["ports"] if each["name"] == probe["httpGet"]["port"]]
        assert port["containerPort"] == Ports().http
        return str(probe["httpGet"]["path"])
    [python, _, program] = probe["exec"]["command"]
    assert python == PYTHON
    compile(program, "probe", "exec")
    [path] = re.findall(rf"'http://{HOST}:{Ports().http}(/[^']*)'", program)
    return str(path)


def test_probes_ask_the_gateway_and_allow_for_loading(case: tuple[Recipe, Path]) -> None:
    """One dead model must not cut off the clients of the others, so the router stands for the server."""
    recipe, directory = case
    template = pod_templates(directory)["server"]
    server, front = container(template), proxy(template)
    startup = server["startupProbe"]
    assert probed(startup, server) == ROUTER_READY
    assert probed(server["livenessProbe"], server) == "/v2/health/live"
    assert front["readinessProbe"]["httpGet"] == {"path": ROUTER_READY, "port": "metrics"}
    assert front["livenessProbe"]["httpGet"] == {"path": "/haproxy", "port": "metrics"}
    checks = re.findall(r"option httpchk GET (\S+)", (directory / "haproxy.cfg").read_text())
    assert checks == [ROUTER_READY, ROUTER_READY, "/health", "/health"]
    assert config_templates(REPOSITORY_TEMPLATES / "router", recipe.runtime), "a model of the repository"
    patience_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert patience_s == Launch(runtime=recipe.runtime).ready_timeout_s
    if (directory / "compose.yaml").exists():
        check = compose(directory)["services"]["server"]["healthcheck"]
        assert check["start_period"] == f"{patience_s}s"
        assert f"http://{HOST}:{Ports().http}{ROUTER_READY}'" in check["test"][-1]


def test_services_and_policies_select_the_pods_that_they_mean(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    labels = {name: template["metadata"]["labels"] for name, template in pod_templates(directory).items()}

    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, own in labels.items() if selector.items() <= own.items()}

    for service in services(directory).values():
        assert selected(service["selector"]) == {"server"}
    assert selected(manifest(directory, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]) == {
        "server"
    }
    policy = manifest(directory, "NetworkPolicy")["spec"]
    assert selected(policy["podSelector"]["matchLabels"]) == set(labels)
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def services(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the spec of each Service, by its name."""
    found = [each for each in manifests(directory) if each["kind"] == "Service"]
    return {each["metadata"]["name"]: each["spec"] for each in found}


def ports_of(box: dict[str, Any]) -> dict[str, int]:
    """Return the number of each port of a container, by its name."""
    return {port["name"]: port["containerPort"] for port in box.get("ports", [])}


def test_clients_reach_haproxy_alone_and_jobs_the_gateway_alone(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    template = pod_templates(directory)["server"]
    front, gateway = ports_of(proxy(template)), ports_of(container(template))
    assert not set(front) & set(gateway)
    found = services(directory)
    clients = found.pop(f"draftproof-{recipe.name}")
    assert {port["targetPort"] for port in clients["ports"]} == set(front)
    rules = {
        str(peer): {port["port"] for port in rule.get("ports", [])}
        for rule in manifest(directory, "NetworkPolicy")["spec"]["ingress"]
        for peer in rule["from"]
    }
    instance = f"draftproof-{recipe.name}"
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": instance}}}
    job = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": f"{instance}-canary"}}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    expected: dict[str, set[str]] = {
        str({"podSelector": {"matchLabels": {"draftproof/client": "true"}}}): {"http", "grpc"},
        str({"podSelector": {"matchLabels": {"draftproof/openai-client": "true"}}}): {"openai"},
        str(monitoring): {"metrics"},
    }
    if recipe.tensorrt_llm.num_nodes > 1:
        assert not found and not gateway
        assert rules == {**expected, str(own): set()}  # MPI and NCCL choose their ports
        return
    [(name, control)] = found.items()
    assert name == f"{instance}-control"
    assert "type" not in control, "ClusterIP"
    assert control["publishNotReadyAddresses"] is True
    usual = {"http": Ports().http, "grpc": Ports().grpc, "metrics": Ports().metrics}
    assert {port["name"]: port["port"] for port in control["ports"]} == usual
    assert {port["name"]: gateway[port["targetPort"]] for port in control["ports"]} == usual
    assert rules == {**expected, str(job): set(gateway)}


def test_haproxy_has_its_file_perhaps_a_certificate_and_nothing_else(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    template = pod_templates(directory)["server"]
    front = proxy(template)
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in front["volumeMounts"]}
    config = "/etc/draftproof/haproxy.cfg"
    assert set(mounts) == {config, "/certs"}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert (mounts[config]["name"], mounts[config]["subPath"]) == ("settings", "haproxy.cfg")
    settings = manifest(directory, "ConfigMap")
    assert volumes["settings"]["configMap"] == {"name": settings["metadata"]["name"]}
    assert settings["metadata"]["name"] == f"draftproof-{recipe.name}-settings"
    assert settings["data"]["haproxy.cfg"] == (directory / "haproxy.cfg").read_text()
    assert volumes["certs"]["secret"]["optional"] is True
    text = (directory / "haproxy.cfg").read_text()
    for port in front["ports"]:
        assert f"bind :{port['containerPort']}" in text
    for number in (Ports().http, Ports().grpc, Ports().metrics):
        assert f"server gateway {HOST}:{number}" in text
    assert f"server front-door {HOST}:{Ports().openai}" in text
    commands = [front["command"]]
    if (directory / "compose.yaml").exists():
        service = compose(directory)["services"]["haproxy"]
        assert service["network_mode"] == "service:server", "the server listens on its loopback"
        assert {mount["target"] for mount in service["volumes"]} == set(mounts)
        assert "ports" not in service
        published = [text.rpartition(":")[2] for text in compose(directory)["services"]["server"]["ports"]]
        assert published == [str(port["containerPort"]) for port in front["ports"]]
        commands.append(service["entrypoint"])
    for shell, option, line in commands:
        assert (shell, option) == ("sh", "-c")
        assert line.endswith(f"exec haproxy -W -db -f {config}")


def seconds_before_the_end(box: dict[str, Any]) -> int:
    """Return how long a container goes on after it was told to end, while Services still lead to it."""
    program, seconds = box["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    return int(seconds)


def test_a_pod_that_ends_has_the_time_to_drain(case: tuple[Recipe, Path]) -> None:
    """Kubernetes ends all containers of a pod at once, each after its own ``preStop``."""
    directory = case[1]
    templates = pod_templates(directory)
    server, front = container(templates["server"]), proxy(templates["server"])
    before_s = seconds_before_the_end(server)
    assert before_s == seconds_before_the_end(front) == 15
    for template in templates.values():
        assert template["spec"]["terminationGracePeriodSeconds"] >= before_s + KILL_AFTER_S
    [waits_s] = re.findall(r"hard-stop-after (\d+)s", (directory / "haproxy.cfg").read_text())
    assert DRAIN_S + EXIT_TIMEOUT_S < int(waits_s) <= KILL_AFTER_S


def test_openai_s_api_needs_keys_and_listens_where_haproxy_alone_asks_it(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    template = pod_templates(directory)["server"]
    server = container(template)
    settings = FrontDoorSettings.read(directory / "front_door.yaml")
    assert settings.address == HOST
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    keys = mounts[str(Path(settings.keys).parent)]
    assert keys["readOnly"] and "subPath" not in keys, "a file that is mounted alone never changes"
    [volume] = [each for each in template["spec"]["volumes"] if each["name"] == keys["name"]]
    assert volume["secret"] == {
        "secretName": f"draftproof-{recipe.name}-keys",
        "optional": True,
        "defaultMode": 0o440,
    }
    given = Path(server["command"][server["command"].index("--front-door") + 1])
    assert mounts[str(given.parent)]["name"] == "settings"
    assert manifest(directory, "ConfigMap")["data"][given.name] == (directory / given.name).read_text()
