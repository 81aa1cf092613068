"""Tests of the files in ``deploy/``: schemas, confinement, commands, probes, and who reaches whom.

Manifests are checked strictly against the API server's schemas, from the package kubernetes-validate. No
package has the schemas of LeaderWorkerSet, Gateway API, its inference extension and Prometheus Operator; pods
inside them are checked. No cluster has seen them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from build.tensorrt_llm.versions import has_fixed_tag
from pipelines.deploy.__main__ import _parse
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import DRAIN_S, EXIT_TIMEOUT_S, HOST, Ports
from pipelines.deploy.server import KILL_AFTER_S
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.front_door.application import POSTS
from pipelines.triton.backend import gauges
from pipelines.triton.gateway.metrics import GatewayMetrics
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.upstreams.settings import UpstreamsSettings
from tests.conftest import REPOSITORY_ROOT
from tests.support.deployment_files import (
    CODE,
    DEPLOY,
    PYTHON,
    RUN,
    Document,
    alerts,
    box,
    command,
    compose,
    documents,
    groupings,
    kustomized,
    one,
    pod,
    selectors,
)
from tests.unit.gateway.test_metrics import supervised

KUBERNETES_VERSION = "1.30"  # the oldest supported version; later ones accept its manifests
FOLDERS = ("server", "gpu", "fleet")
OF_OTHERS = {"LeaderWorkerSet", "HTTPRoute", "InferencePool", "ServiceMonitor"}
ROUTER_READY = "/v2/models/router/ready"
SETTINGS = "/etc/draftproof/settings"
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture(scope="module", params=FOLDERS)
def found(request: pytest.FixtureRequest) -> list[Document]:
    return kustomized(request.param)


@pytest.fixture(scope="module")
def server() -> list[Document]:
    """The manifests of one server, as they lie in the folder; a kustomization adds the settings alone."""
    return documents(DEPLOY / "server" / "server.yaml")


def pods(found: list[Document]) -> Iterator[tuple[Document, Document]]:
    """Yield the labels and the spec of every pod."""
    for document in found:
        if document["kind"] == "Deployment":
            template = document["spec"]["template"]
            yield template["metadata"]["labels"], template["spec"]


def boxes(spec: Document) -> list[Document]:
    return [*spec["containers"], *spec.get("initContainers", ())]


def test_every_manifest_fits_its_schema(found: list[Document]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))
    for document in found:
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    for _, spec in pods(found):
        wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(wrapped, KUBERNETES_VERSION, strict=True)


def test_what_a_fleet_may_add_fits_its_schema() -> None:
    listed = (DEPLOY / "fleet" / "kustomization.yaml").read_text()
    for path in DEPLOY.glob("fleet/*.yaml"):
        assert path.name == "kustomization.yaml" or path.name in listed
        for document in documents(path) if path.name != "kustomization.yaml" else ():
            if document["kind"] not in OF_OTHERS:
                kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_every_pod_is_confined_and_mounts_what_it_has(found: list[Document]) -> None:
    user = user_of_the_image()
    for _, spec in pods(found):
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == security["runAsGroup"] == user
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert set(volumes) == {mount["name"] for each in boxes(spec) for mount in each["volumeMounts"]}
        for each in boxes(spec):
            assert each["securityContext"] == CONFINED
            assert {"cpu", "memory"} <= set(each["resources"]["limits"])
            assert has_fixed_tag(each["image"])
            mounts = {mount["mountPath"]: mount for mount in each["volumeMounts"]}
            writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
            assert writable <= {RUN, "/dev/shm", "/tmp"}


def user_of_the_image() -> int:
    """Return the user that every stage of the Dockerfile ends with."""
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert [stage.split()[2] for stage in stages] == ["environment", "server"]
    [user] = {re.findall(r"^USER (\d+):\1$", stage, re.MULTILINE)[-1] for stage in stages}
    assert f"useradd --uid {user} --gid {user} " in text
    assert f"--owner {user} --group {user} {RUN}" in text, "a new volume there is the user's"
    return int(user)


def test_the_image_has_the_code_where_the_files_expect_it() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert f"/site-packages/draftproof_serve {CODE} \\\n" in text and f"DRAFTPROOF_HOME={CODE}\n" in text
    assert PYTHON.removesuffix("/bin/python") in text
    sent = (REPOSITORY_ROOT / ".dockerignore").read_text().splitlines()
    copied = {f"!{name}" for name in re.findall(r"^COPY (\S+) /tmp/", text, re.MULTILINE)}
    assert {line for line in sent if line.startswith("!")} == copied != set()


def servers(found: list[Document]) -> Iterator[tuple[Document, Document]]:
    """Yield the spec of every pod that answers, and its server."""
    for labels, spec in pods(found):
        if labels.get("draftproof/answers"):
            yield spec, box(spec, "server")


def test_containers_run_our_own_command(found: list[Document]) -> None:
    """The gateway listens beyond HAProxy's loopback only where a rollout's job or a front door asks it."""
    for _, each in servers(found):
        words = command(each)
        assert words[:3] == [PYTHON, "-m", "pipelines.deploy"]
        options = _parse(words[3:])
        assert options.command.__name__ == "_run"
        assert str(options.directory) == RUN
        assert str(options.package).startswith("/packages/")
        assert options.public_key is None
        assert options.address == ("0.0.0.0" if each.get("ports") else HOST)
        assert str(options.front_door) == f"{SETTINGS}/front_door.yaml"


def test_probes_ask_the_gateway_and_allow_for_loading(found: list[Document]) -> None:
    """One dead model must not cut off the clients of the others, so the router stands for the server."""
    for spec, each in servers(found):
        startup, front = each["startupProbe"], box(spec, "haproxy")
        needs_gpu = "nvidia.com/gpu" in each["resources"]["limits"]
        for probe, path in ((startup, ROUTER_READY), (each["livenessProbe"], "/v2/health/live")):
            if "exec" in probe:  # the gateway listens on the pod's loopback
                compile(probe["exec"]["command"][-1], "probe", "exec")
                assert f"'http://{HOST}:{Ports().http}{path}'" in probe["exec"]["command"][-1]
            else:
                assert probe["httpGet"] == {"path": path, "port": "control"}
        runtime = "tensorrt_llm" if needs_gpu else "embedded"
        patience_s = startup["periodSeconds"] * startup["failureThreshold"]
        assert patience_s == Launch(runtime=runtime).ready_timeout_s
        assert front["readinessProbe"]["httpGet"] == {"path": ROUTER_READY, "port": "metrics"}


def test_a_pod_that_ends_has_the_time_to_drain(found: list[Document]) -> None:
    """Kubernetes ends all containers of a pod at once, each after its own ``preStop``."""
    for spec, each in servers(found):
        waits = [c["lifecycle"]["preStop"]["exec"]["command"] for c in (each, box(spec, "haproxy"))]
        assert waits == [["sleep", "15"]] * 2
        assert spec["terminationGracePeriodSeconds"] >= 15 + KILL_AFTER_S
    [stops_s] = re.findall(r"hard-stop-after (\d+)s", (DEPLOY / "server" / "haproxy.cfg").read_text())
    assert DRAIN_S + EXIT_TIMEOUT_S < int(stops_s) <= KILL_AFTER_S


def test_services_budgets_and_policies_select_the_pods_that_they_mean(found: list[Document]) -> None:
    labels = [own for own, _ in pods(found)]
    for document in found:
        if document["kind"] == "Service":
            selector = document["spec"]["selector"]
        elif document["kind"] == "PodDisruptionBudget":
            selector = document["spec"]["selector"]["matchLabels"]
        elif document["kind"] == "NetworkPolicy":
            selector = document["spec"]["podSelector"]["matchLabels"]
        else:
            continue
        selected = [own for own in labels if selector.items() <= own.items()]
        assert selected, document["metadata"]["name"]
        if document["kind"] == "Service":
            ports = {port["targetPort"] for port in document["spec"]["ports"]}
            for own, spec in pods(found):
                if own in selected:
                    assert ports <= {port["name"] for each in boxes(spec) for port in each.get("ports", ())}


def admitted(policy: Document) -> dict[str, set[str]]:
    """Return the ports that a policy opens, by who may use them."""
    return {
        str(peer): {port["port"] for port in rule.get("ports", ())}
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
    }


def test_clients_reach_haproxy_alone(server: list[Document]) -> None:
    spec = pod(one(server, "Deployment"))
    front = {port["name"] for port in box(spec, "haproxy")["ports"]}
    assert {port["targetPort"] for port in one(server, "Service")["spec"]["ports"]} == front
    policy = one(server, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"] and policy["spec"]["egress"] == []
    assert admitted(policy) == {
        str({"podSelector": {"matchLabels": {"draftproof/client": "true"}}}): {"http", "grpc"},
        str({"podSelector": {"matchLabels": {"draftproof/openai-client": "true"}}}): {"openai"},
        str({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}): {
            "metrics"
        },
    }


def test_haproxy_passes_every_path_that_is_posted() -> None:
    [paths] = re.findall(r"acl ask path (.+)", (DEPLOY / "server" / "haproxy.cfg").read_text())
    assert paths.split() == list(POSTS)


def test_openai_s_api_needs_keys_and_listens_where_haproxy_alone_asks_it(server: list[Document]) -> None:
    settings = FrontDoorSettings.read(DEPLOY / "server" / "front_door.yaml")
    assert (settings.address, settings.keys) == (HOST, "/etc/draftproof/keys/keys.json")
    assert settings.open_metrics, "HAProxy's port for metrics has no key"
    mounts = {
        each["mountPath"]: each for each in box(pod(one(server, "Deployment")), "server")["volumeMounts"]
    }
    keys = mounts["/etc/draftproof/keys"]
    assert keys["readOnly"] and "subPath" not in keys, "a file that is mounted alone never changes"


def test_the_run_directory_of_one_server_outlives_its_pod(server: list[Document]) -> None:
    """Two servers in one would take each other's sockets, so the old one ends before the new one begins."""
    deployment = one(server, "Deployment")
    [run] = [volume for volume in pod(deployment)["volumes"] if volume["name"] == "run"]
    claim = one(server, "PersistentVolumeClaim", "draftproof-run")
    assert run["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_each_server_of_a_fleet_has_a_run_directory_of_its_own_and_drains_after_its_successor() -> None:
    found = kustomized("fleet")
    assert "PersistentVolumeClaim" not in {document["kind"] for document in found}
    for name in ("draftproof", "draftproof-front-door"):
        deployment = one(found, "Deployment", name)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        assert deployment["spec"]["strategy"] == rolling
        assert deployment["spec"]["replicas"] > 1
        assert pod(deployment)["terminationGracePeriodSeconds"] >= 15 + DRAIN_S
        assert len(pod(deployment)["topologySpreadConstraints"]) == 2
    [run] = [each for each in pod(one(found, "Deployment"))["volumes"] if each["name"] == "run"]
    assert run.keys() == {"name", "emptyDir"}


def test_front_doors_find_the_servers_and_may_ask_them(tmp_path: Path) -> None:
    found = kustomized("fleet")
    door = box(pod(one(found, "Deployment", "draftproof-front-door")), "front-door")
    assert door["command"][1:3] == ["-m", "pipelines.upstreams"]
    given = dict(zip(door["command"][3::2], door["command"][4::2], strict=True))
    assert given["--port"] == str(door["ports"][0]["containerPort"])
    for name, text in one(found, "ConfigMap", "draftproof-front-door")["data"].items():
        (tmp_path / name).write_text(text)
    FrontDoorSettings.read(tmp_path / Path(given["--front-door"]).name)
    stable = UpstreamsSettings.read(tmp_path / Path(given["--settings"]).name).stable
    name, port = stable.server_name.split(":")
    service = one(found, "Service", name)["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    assert [str(each["port"]) for each in service["ports"]] == [port] == [str(Ports().grpc)]
    policy = one(found, "NetworkPolicy", "draftproof-from-front-doors")
    labels = {"app.kubernetes.io/instance": "draftproof-front-door"}
    assert admitted(policy) == {str({"podSelector": {"matchLabels": labels}}): {"control-grpc"}}


def test_compose_is_confined_in_the_same_way() -> None:
    services = compose()["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert has_fixed_tag(service["image"])
    mounts = {mount["target"]: mount for mount in services["server"]["volumes"]}
    assert [path for path, mount in mounts.items() if not mount.get("read_only")] == [RUN]
    assert mounts[RUN]["type"] == "volume", "it belongs to the user of the image"
    build = services["server"]["build"]
    assert (DEPLOY / build["context"]).resolve() == REPOSITORY_ROOT
    assert (REPOSITORY_ROOT / build["dockerfile"]).is_file()
    for name in ("server", "haproxy"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > KILL_AFTER_S
    gpu = documents(DEPLOY / "compose.gpu.yaml")[0]["services"]["server"]
    for service, runtime in ((services["server"], "embedded"), (gpu, "tensorrt_llm")):
        patience_s = Launch(runtime=runtime).ready_timeout_s  # type: ignore[arg-type]
        assert service["healthcheck"]["start_period"] == f"{patience_s:.0f}s"


def published() -> set[str]:
    """Return the names of all metrics of models and gateway; a histogram is read by its count."""
    front_door: Any = SimpleNamespace(answers=True, num_restarts=0)
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(supervised(), OpenCalls(), front_door))
    of_gateway = re.findall(r"^# TYPE (\S+) ", generate_latest(registry).decode(), re.MULTILINE)
    front = {"vllm:time_to_first_token_seconds_count", "draftproof_arm_out"}
    return {*gauges._DESCRIPTIONS, *front, *of_gateway}


def test_alerts_name_metrics_that_the_server_has_and_sum_over_no_servers_or_pairs() -> None:
    """A candidate has the same metrics as the stable pair, under another model name."""
    rules = alerts()
    for rule in rules.values():
        names = {selector.name for selector in selectors(rule["expr"])}
        assert names and names <= {*published(), "up"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(groupings(rule["expr"])) <= {("instance", "model")}
    for name in ("DraftproofAcceptanceLow", "DraftproofDraftRefuses", "DraftproofModelSilent"):
        assert groupings(rules[name]["expr"])
    [absent] = [
        selector
        for selector in selectors(rules["DraftproofNotReady"]["expr"])
        if selector.name == "draftproof_requests_waiting"
    ]
    matched = {matcher.name: matcher.value for matcher in absent.matchers.matchers}
    assert matched["model"] == LOOP, "a candidate that is loaded does not stand for the server's own"


def test_prometheus_reads_the_rules_and_the_port_of_the_server(server: list[Document]) -> None:
    [document] = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert (DEPLOY / "prometheus" / document["rule_files"][0]).is_file()
    [job] = document["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in alerts()["DraftproofDown"]["expr"]
    service, port = job["static_configs"][0]["targets"][0].split(":")
    assert any(text.endswith(f":{port}") for text in compose()["services"][service]["ports"])
    annotations = one(server, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == port
