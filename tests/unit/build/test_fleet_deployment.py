"""Tests of the rendered manifests of a fleet, and of the Helm chart.

Kubernetes' own kinds are checked against its schemas, and pods against the restricted Pod Security Standard.
No package has Helm or the schemas of the other kinds: the chart is rendered here, by the few expressions that
it uses, and must give the plain files.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from build.deployment import PYTHON, render_deployment
from build.recipe import Recipe
from build.rendering.image import CODE
from pipelines.deploy.endpoint import DRAIN_S
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import Ports
from pipelines.front_door.fleet.__main__ import _parse
from tests.support.deployment_files import RECIPES
from tests.unit.build.test_deployment import KUBERNETES_VERSION

OF_OTHERS = {"HTTPRoute", "InferencePool", "ServiceMonitor"}
VOLUMES = {
    "configMap",
    "emptyDir",
    "persistentVolumeClaim",
    "secret",
}  # some of those that the standard allows
_PRE_STOP_S = 15
_SERVERS, _JOB = ("Deployment", ""), ("Job", "-rollout-CANDIDATE")


@pytest.fixture(scope="module", params=["embedded", "one GPU"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


def documents(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.rglob("*.yaml"))
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def one(directory: Path, kind: str, name: str) -> dict[str, Any]:
    """Return the manifest of a kind whose name ends like this; "" for that of the servers."""
    [found] = [
        each
        for each in documents(directory / "fleet")
        if each["kind"] == kind and each["metadata"]["name"] == f"{instance(directory)}{name}"
    ]
    return found


def instance(directory: Path) -> str:
    return f"draftproof-{directory.parent.name}"


def labels(directory: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = one(directory, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
    return found


def boxes_of(directory: Path, kind: str = "Deployment", name: str = "") -> dict[str, dict[str, Any]]:
    """Return the containers of a pod by their names."""
    pod = one(directory, kind, name)["spec"]["template"]["spec"]
    return {each["name"]: each for each in pod["containers"]}


def selects(selector: dict[str, str], of_a_pod: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= of_a_pod.items()


def test_every_manifest_fits_the_schema_of_kubernetes(case: tuple[Recipe, Path]) -> None:
    found = documents(case[1] / "fleet")
    for document in found:
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    kinds = {document["kind"] for document in found}
    assert {*OF_OTHERS, "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "ConfigMap"} < kinds
    names = [(document["kind"], document["metadata"]["name"]) for document in found]
    assert len(names) == len(set(names))


def test_pods_are_restricted(case: tuple[Recipe, Path]) -> None:
    for kind, name in (("Deployment", ""), ("Deployment", "-front-door"), ("Job", "-rollout-CANDIDATE")):
        pod = one(case[1], kind, name)["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (kind == "Job")
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} <= VOLUMES
        for box in pod["containers"]:
            assert box["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not any("hostPort" in port for port in box.get("ports", ()))
            assert {"cpu", "memory"} <= set(box["resources"]["limits"])


def test_a_new_pod_is_ready_before_an_old_one_ends_and_that_one_drains(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    for name in ("", "-front-door"):
        spec = one(directory, "Deployment", name)["spec"]
        surge = 1 if name or recipe.runtime == "embedded" else 0  # there may be no GPU to spare
        assert spec["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 1 - surge, "maxSurge": surge},
        }
        assert spec["replicas"] > 1
        pod = spec["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > _PRE_STOP_S + DRAIN_S + 10
        assert any("readinessProbe" in box for box in pod["containers"])
        for box in pod["containers"]:
            if box["name"] == "agent":  # ends first, so that a rollout does not take the drain for a fault
                assert "lifecycle" not in box
                continue
            assert box["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(_PRE_STOP_S)]
        assert {each["topologyKey"] for each in pod["topologySpreadConstraints"]} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        selectors = [each["labelSelector"]["matchLabels"] for each in pod["topologySpreadConstraints"]]
        budget = one(directory, "PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        for selector in (*selectors, budget["selector"]["matchLabels"], spec["selector"]["matchLabels"]):
            assert selects(selector, labels(directory, name))
        scaled = one(directory, "HorizontalPodAutoscaler", name)["spec"]
        assert scaled["minReplicas"] == spec["replicas"] < scaled["maxReplicas"]
        assert scaled["scaleTargetRef"]["name"] == f"{instance(directory)}{name}"
    volumes = one(directory, "Deployment", "")["spec"]["template"]["spec"]["volumes"]
    assert [list(volume) for volume in volumes if volume["name"] == "run"] == [["name", "emptyDir"]]


def test_front_doors_find_the_servers(case: tuple[Recipe, Path], tmp_path: Path) -> None:
    directory = case[1]
    template = one(directory, "Deployment", "-front-door")["spec"]["template"]["spec"]
    [box] = template["containers"]
    assert box["command"][:3] == [PYTHON, "-m", "pipelines.front_door.fleet"]
    assert box["workingDir"] == CODE
    options = _parse(box["command"][3:])
    assert options.openai_port == box["ports"][0]["containerPort"] == Ports().openai
    [mount] = [each for each in box["volumeMounts"] if each["mountPath"] == str(options.front_door.parent)]
    assert mount["name"] == "settings"
    text = one(directory, "ConfigMap", "-front-door")["data"][options.front_door.name]
    (tmp_path / "front_door.yaml").write_text(text)
    host, _, port = FrontDoorSettings.read(tmp_path / "front_door.yaml").server_name.rpartition(":")
    named = one(directory, "Service", "-servers")
    assert (named["metadata"]["name"], named["spec"]["ports"][0]["port"]) == (host, int(port))
    assert named["spec"]["clusterIP"] == "None" and named["spec"]["publishNotReadyAddresses"]
    assert selects(named["spec"]["selector"], labels(directory, ""))
    assert not selects(named["spec"]["selector"], labels(directory, "-front-door"))
    server = boxes_of(directory)["server"]
    [open_port] = [
        each for each in server["ports"] if each["name"] == named["spec"]["ports"][0]["targetPort"]
    ]
    assert open_port["containerPort"] == int(port) == Ports().grpc
    assert server["command"][server["command"].index("--address") + 1] == "0.0.0.0"
    of_clients = one(directory, "Service", "-front-door")["spec"]
    assert selects(of_clients["selector"], labels(directory, "-front-door"))


def test_the_network_lets_front_doors_reach_servers_and_nothing_else(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    [to_servers, to_dns] = one(directory, "NetworkPolicy", "-front-door")["spec"]["egress"]
    assert selects(to_servers["to"][0]["podSelector"]["matchLabels"], labels(directory, ""))
    assert [each["port"] for each in to_servers["ports"]] == [Ports().grpc]
    assert {each["port"] for each in to_dns["ports"]} == {53}
    [admitted] = one(directory, "NetworkPolicy", "-from-front-doors")["spec"]["ingress"]
    assert selects(admitted["from"][0]["podSelector"]["matchLabels"], labels(directory, "-front-door"))
    assert admitted["ports"] == [{"protocol": "TCP", "port": "control-grpc"}]
    of_server = one(directory, "NetworkPolicy", "")["spec"]
    assert of_server["egress"] == [] and selects(
        of_server["podSelector"]["matchLabels"], labels(directory, "")
    )


def test_only_the_controller_reaches_the_agents(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    of_job = one(directory, *_JOB)["spec"]["template"]["metadata"]["labels"]
    [admitted] = one(directory, "NetworkPolicy", "-from-rollout")["spec"]["ingress"]
    assert selects(admitted["from"][0]["podSelector"]["matchLabels"], of_job)
    assert admitted["ports"] == [{"protocol": "TCP", "port": "agent"}]
    for document in documents(directory / "fleet"):
        if document["kind"] == "NetworkPolicy" and document["metadata"]["name"] != (
            f"{instance(directory)}-from-rollout"
        ):
            rules = document["spec"].get("ingress", ())
            assert not any(port["port"] in ("agent", 8004) for rule in rules for port in rule["ports"])
    own = one(directory, "NetworkPolicy", "-rollout")["spec"]
    assert selects(own["podSelector"]["matchLabels"], of_job) and own["ingress"] == []
    to_agents = own["egress"][0]
    assert selects(to_agents["to"][0]["podSelector"]["matchLabels"], labels(directory, ""))
    assert [each["port"] for each in to_agents["ports"]] == [8004]
    for name in ("", "-front-door"):
        assert not selects(own["podSelector"]["matchLabels"], labels(directory, name))


def test_the_package_of_the_servers_is_a_variable(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    server = boxes_of(directory)["server"]
    assert server["command"][server["command"].index("--package") + 1] == "/packages/$(PACKAGE)"
    assert {"name": "PACKAGE", "value": recipe.name} in server["env"]


def test_routes_and_monitors_lead_to_what_is_there(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    [backend] = one(directory, "HTTPRoute", "")["spec"]["rules"][0]["backendRefs"]
    service = one(directory, "Service", "-front-door")
    assert backend == {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    pool = one(directory, "InferencePool", "")["spec"]
    assert selects(pool["selector"]["matchLabels"], labels(directory, ""))
    ports = {each["name"]: each["containerPort"] for each in boxes_of(directory)["haproxy"]["ports"]}
    assert pool["targetPorts"] == [{"number": ports["openai"]}]
    assert labels(directory, "")["inference.networking.k8s.io/engine-type"] == "vllm"
    for name in ("", "-front-door"):
        monitor, monitored = one(directory, "ServiceMonitor", name), one(directory, "Service", name)
        assert selects(monitor["spec"]["selector"]["matchLabels"], monitored["metadata"]["labels"])
        wanted = monitor["spec"]["endpoints"][0]["port"]
        assert wanted in {each["name"] for each in monitored["spec"]["ports"]}


def helm(text: str, values: dict[str, Any], release: str) -> str:
    """Render what the chart uses of Helm: values, the release's name, and lines with ``if`` and ``end``."""

    def value(path: str) -> Any:
        found: Any = {"Values": values, "Release": {"Name": release, "Namespace": "default"}}
        for name in path.split(".")[1:]:
            found = found[name]
        return found

    if wrapped := re.fullmatch(r"\{\{- if (\S+) \}\}\n(.*)\{\{- end \}\}\n", text, re.DOTALL):
        text = wrapped[2] if value(wrapped[1]) else ""
    return re.sub(r"\{\{ (\.[\w.]+) \}\}", lambda match: str(value(match[1])), text)


def rendered(directory: Path, values: dict[str, Any], release: str) -> dict[tuple[str, str], Any]:
    found = {}
    for path in sorted((directory / "chart" / "templates").iterdir()):
        text = helm(path.read_text(), values, release)
        assert "{{" not in text, path
        for document in yaml.safe_load_all(text):
            if document is not None:
                found[document["kind"], document["metadata"]["name"]] = document
    return found


def test_the_chart_gives_the_plain_files(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    chart = yaml.safe_load((directory / "chart" / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["name"]) == ("v2", instance(directory))
    values = yaml.safe_load((directory / "chart" / "values.yaml").read_text())
    plain = {(each["kind"], each["metadata"]["name"]): each for each in documents(directory / "fleet")}
    switches = {name: True for name, value in values.items() if value is False}
    assert set(switches) == {"autoscaler", "httpRoute", "inferencePool", "serviceMonitor"}
    assert values["candidate"] == ""
    switches["candidate"] = "CANDIDATE"
    assert rendered(directory, {**values, **switches}, instance(directory)) == plain
    optional = {
        (each["kind"], each["metadata"]["name"]) for each in documents(directory / "fleet" / "optional")
    }
    assert set(rendered(directory, values, instance(directory))) == set(plain) - optional


def test_the_values_of_the_chart_are_used(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    values = copy.deepcopy(yaml.safe_load((directory / "chart" / "values.yaml").read_text()))
    values |= {"image": "registry.example/x:2", "autoscaler": True, "httpRoute": True, "gateway": "edge"}
    values["servers"] = {"replicas": 5, "maxReplicas": 50, "cpus": "7", "package": "new-1"}
    values["candidate"] = "new-2"
    values["frontDoors"] = {"replicas": 4, "maxReplicas": 40}
    found = rendered(directory, values, "other")
    assert all(name.startswith("other") for _, name in found)
    assert instance(directory) not in re.sub(r"#.*", "", yaml.safe_dump(list(found.values())))
    server = found["Deployment", "other"]["spec"]
    assert (server["replicas"], found["Deployment", "other-front-door"]["spec"]["replicas"]) == (5, 4)
    box = server["template"]["spec"]["containers"][0]
    assert {"name": "PACKAGE", "value": "new-1"} in box["env"]
    job = found["Job", "other-rollout-new-2"]["spec"]["template"]["spec"]["containers"][0]
    assert "/packages/new-2" in job["command"]
    assert (box["image"], box["resources"]["limits"]["cpu"]) == ("registry.example/x:2", "7")
    scaled = [found["HorizontalPodAutoscaler", name]["spec"] for name in ("other", "other-front-door")]
    assert [(each["minReplicas"], each["maxReplicas"]) for each in scaled] == [(5, 50), (4, 40)]
    assert found["HTTPRoute", "other"]["spec"]["parentRefs"] == [{"name": "edge"}]
    for document in found.values():
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_ranks_on_several_machines_have_no_fleet(tmp_path: Path) -> None:
    directory = render_deployment(RECIPES["two machines"], tmp_path)
    assert not (directory / "fleet").exists() and not (directory / "chart").exists()
