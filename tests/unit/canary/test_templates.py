"""Tests of the rendered examples for Argo Rollouts, Flagger and KServe.

The tools' own objects are checked against ``tests.support.rollout_schemas``, pods and services against
Kubernetes' schemas, addresses against the gates that we serve. No cluster has seen them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml

from build.deployment import PYTHON, render_deployment
from build.recipe import Recipe
from build.rendering.image import CODE
from build.rendering.templates import TEMPLATES as REPOSITORY_TEMPLATES
from pipelines.canary.__main__ import _parse
from pipelines.canary.gates.verdict import HOOKS
from pipelines.canary.run_files import arms_file, observations_file, state_file
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.place import KEY_FILE
from pipelines.program import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED
from tests.support.deployment_files import RECIPES, container, manifest, manifests, pod_templates, proxy
from tests.support.rollout_schemas import SCHEMAS
from tests.unit.build.test_deployment import KUBERNETES_VERSION


@pytest.fixture(scope="module", params=["embedded", "one GPU"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def directory(case: tuple[Recipe, Path]) -> Path:
    return case[1]


def documents(directory: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    for path in sorted((directory / "rollouts").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not kinds or document.get("kind") in kinds:
                yield document


def patched(directory: Path) -> dict[str, Any]:
    """Return the deployment after ``kubectl patch``, which merges lists by name; null removes a key."""
    deployment = copy.deepcopy(manifest(directory, "Deployment"))
    patch = yaml.safe_load((directory / "rollouts" / "gates.yaml").read_text())
    assert patch.keys() == {"spec"}
    assert patch["spec"].keys() == {"strategy", "template"}
    deployment["spec"]["strategy"].update(patch["spec"]["strategy"])
    spec, changes = deployment["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    assert changes.keys() == {"containers", "volumes"}
    for kind, changed in changes.items():
        named = {each["name"]: each for each in spec[kind]}
        for change in changed:
            named[change["name"]] = {**named.get(change["name"], {}), **change}
        spec[kind] = [
            {key: value for key, value in each.items() if value is not None} for each in named.values()
        ]
    return deployment


def job(directory: Path) -> dict[str, Any]:
    """Return the job of a rollout by Draftproof alone."""
    return next(documents(directory, "Job"))


def pods(directory: Path) -> Iterator[dict[str, Any]]:
    """Return the pod specs within the examples."""
    yield patched(directory)["spec"]["template"]["spec"]
    for template in documents(directory, "AnalysisTemplate"):
        for metric in template["spec"]["metrics"]:
            if "job" in metric["provider"]:
                yield metric["provider"]["job"]["spec"]["template"]["spec"]
    yield job(directory)["spec"]["template"]["spec"]
    for service in documents(directory, "InferenceService"):
        names = (
            "automountServiceAccountToken",
            "enableServiceLinks",
            "securityContext",
            "containers",
            "volumes",
        )
        yield {name: service["spec"]["predictor"][name] for name in names}


def addresses(directory: Path) -> Iterator[str]:
    for template in documents(directory, "AnalysisTemplate"):
        yield from (
            m["provider"]["web"]["url"] for m in template["spec"]["metrics"] if "web" in m["provider"]
        )
    for canary in documents(directory, "Canary"):
        yield from (hook["url"] for hook in canary["spec"]["analysis"]["webhooks"])


def test_each_tool_has_its_example(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    kinds = {document.get("kind", "patch") for document in documents(directory)}
    expected = {"patch", "Job", "Rollout", "AnalysisTemplate", "Service", "NetworkPolicy", "Canary"}
    assert kinds == expected | ({"InferenceService"} if recipe.runtime == "embedded" else set())


def test_their_objects_fit_the_tools_schemas(directory: Path) -> None:
    for document in documents(directory, *SCHEMAS):
        jsonschema.validate(document, SCHEMAS[document["kind"]])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schemas_refuse_what_does_not_fit(kind: str, tmp_path: Path) -> None:
    """Negative control of the test above."""
    document = next(documents(render_deployment(RECIPES["embedded"], tmp_path), kind))
    changed = [{**document, "spec": {**document["spec"], "x": 1}}, {**document, "apiVersion": "v1"}]
    for name, value in document["spec"].items():
        changed.append({**document, "spec": {**document["spec"], name: [value]}})
    for wrong in changed:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMAS[kind])


def test_pods_and_services_fit_kubernetes(directory: Path) -> None:
    kubernetes_validate.validate(patched(directory), KUBERNETES_VERSION, strict=True)
    for document in documents(directory, "Service", "NetworkPolicy", "Job"):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    for spec in pods(directory):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def test_every_container_is_confined_and_mounts_what_its_pod_has(directory: Path) -> None:
    for spec in pods(directory):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for box in spec["containers"]:
            assert box["securityContext"]["readOnlyRootFilesystem"] is True
            assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(box["resources"]["limits"])
            assert {mount["name"] for mount in box.get("volumeMounts", [])} <= volumes


def test_argo_waits_for_a_verdict_and_fails_on_a_rollback(directory: Path) -> None:
    """A limit of 0, the default, would end the analysis at the first inconclusive measurement."""
    [web] = [
        metric
        for template in documents(directory, "AnalysisTemplate")
        for metric in template["spec"]["metrics"]
        if "web" in metric["provider"]
    ]
    assert (web["successCondition"], web["failureCondition"]) == (
        'result.action == "promote"',
        'result.action == "roll_back"',
    )
    assert "count" not in web and web["consecutiveSuccessLimit"] == 1 and web["inconclusiveLimit"] > 1000
    [rollout] = documents(directory, "Rollout")
    steps = rollout["spec"]["strategy"]["canary"]["steps"]
    used = [each["templateName"] for each in steps[0]["analysis"]["templates"]]
    assert set(used) <= {
        template["metadata"]["name"] for template in documents(directory, "AnalysisTemplate")
    }
    assert rollout["spec"]["workloadRef"]["name"] == manifest(directory, "Deployment")["metadata"]["name"]
    path = steps[0]["analysis"]["args"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert re.findall(r"\['(.*)'\]", path)[0] in rollout["metadata"]["annotations"]


def test_flagger_asks_the_gate_of_each_hooks_own_type(directory: Path) -> None:
    [canary] = documents(directory, "Canary")
    hooks = canary["spec"]["analysis"]["webhooks"]
    assert {hook["type"] for hook in hooks} == {"rollout", "confirm-promotion", "rollback"} <= set(HOOKS)
    for hook in hooks:
        assert urlsplit(hook["url"]).path == f"/gate/{hook['type']}"


def test_every_address_leads_to_the_gates(directory: Path) -> None:
    [gates] = [
        box for box in patched(directory)["spec"]["template"]["spec"]["containers"] if box["name"] == "gates"
    ]
    [port] = gates["ports"]
    assert gates["command"][gates["command"].index("--port") + 1] == str(port["containerPort"])
    services = {service["metadata"]["name"]: service["spec"] for service in documents(directory, "Service")}
    found = list(addresses(directory))
    assert len(found) == 4
    for address in found:
        parts = urlsplit(address)
        [exposed] = services[str(parts.hostname)]["ports"]
        assert (exposed["port"], exposed["targetPort"]) == (parts.port, port["name"])
        assert parse_qs(parts.query).keys() == {"candidate"}
        [named] = parse_qs(parts.query)["candidate"]
        assert named.startswith(("/packages/", "{{")), "as the command names it that starts a rollout"


def test_services_select_the_pods_that_hold_the_gates(directory: Path) -> None:
    labels = pod_templates(directory)["server"]["metadata"]["labels"]
    name = labels["app.kubernetes.io/instance"]
    for service in documents(directory, "Service"):
        selector = dict(service["spec"]["selector"])
        # Flagger gives the serving pods another value of the label that it selects by.
        primary = selector["app.kubernetes.io/instance"].removesuffix("-primary")
        assert primary == name
        assert {**selector, "app.kubernetes.io/instance": primary}.items() <= labels.items()


def test_the_tools_may_ask_the_gates_and_nothing_else(directory: Path) -> None:
    """The server's own policy admits only pods that are marked as clients."""
    policies = list(documents(directory, "NetworkPolicy"))
    selected = {
        service["spec"]["selector"]["app.kubernetes.io/instance"]
        for service in documents(directory, "Service")
    }
    assert {
        policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] for policy in policies
    } == selected
    assert [rule["ports"] for policy in policies for rule in policy["spec"]["ingress"]] == [
        [{"port": "gates"}]
    ] * 2


def test_kserve_runs_the_server_as_the_deployment_does(tmp_path: Path) -> None:
    directory = render_deployment(RECIPES["embedded"], tmp_path)
    [service] = documents(directory, "InferenceService")
    template = {"spec": service["spec"]["predictor"]}
    box, front = container(template), proxy(template)
    same = container(pod_templates(directory)["server"])
    for part in ("image", "workingDir", "resources", "securityContext"):
        assert box[part] == same[part]
    assert box["volumeMounts"] == [each for each in same["volumeMounts"] if each["name"] != "keys"]
    *command, port, number = box["command"]
    assert (port, number) == ("--openai-port", "0"), "Knative sends requests to one port of a pod"
    *shared, _, address, _, _ = same["command"]
    assert (command, address) == (shared, "0.0.0.0"), "no job asks KServe's pods"
    assert box["name"] == "kserve-container"  # the name by which KServe knows the model's own container
    path = front["readinessProbe"]["httpGet"]["path"]
    assert path == "/v2/models/router/ready"
    assert front["image"] == proxy(pod_templates(directory)["server"])["image"]
    assert [each["containerPort"] for each in front["ports"]] == [
        8100
    ]  # Knative wants one port of one container
    assert (REPOSITORY_TEMPLATES / path.split("/")[3] / "config.pbtxt").is_file()


def test_a_job_rolls_out_in_the_server_of_the_deployment(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    spec = job(directory)["spec"]["template"]["spec"]
    command = container({"spec": spec})["command"]
    assert command[:3] == [PYTHON, "-m", "pipelines.canary"]
    options = _parse(command[3:])
    assert options.command.__name__ == "_start"
    assert (options.recipe, options.candidate) == (recipe.name, "/packages/CANDIDATE")
    [control] = [
        each["spec"]
        for each in manifests(directory)
        if each["kind"] == "Service" and each["metadata"]["name"] == options.host
    ]
    ports = {port["name"]: port["port"] for port in control["ports"]}
    assert Ports(**ports) == Ports(), "the controller looks for it at the usual ports"
    gateway = {port["name"] for port in container(pod_templates(directory)["server"])["ports"]}
    assert {port["targetPort"] for port in control["ports"]} == gateway, "HAProxy removes the key"
    served = pod_templates(directory)["server"]
    [affinity] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["topologyKey"] == "kubernetes.io/hostname"
    assert affinity["labelSelector"]["matchLabels"].items() <= served["metadata"]["labels"].items()
    for part in ("runAsUser", "runAsGroup", "fsGroup"):
        assert spec["securityContext"][part] == served["spec"]["securityContext"][part]


def test_verdicts_end_the_job_and_a_drained_node_does_not(directory: Path) -> None:
    """After a drain another pod resumes the rollout; after a verdict nothing may repeat it."""
    rules = {rule["action"]: rule for rule in job(directory)["spec"]["podFailurePolicy"]["rules"]}
    assert rules.keys() == {"FailJob", "Ignore"}
    assert rules["FailJob"]["onExitCodes"]["values"] == [EXIT_FAIL, 2, EXIT_INCONCLUSIVE]
    assert EXIT_INTERRUPTED not in rules["FailJob"]["onExitCodes"]["values"]
    assert rules["Ignore"]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job(directory)["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_the_controller_may_ask_the_server_and_is_none(directory: Path) -> None:
    labels = job(directory)["spec"]["template"]["metadata"]["labels"]
    policy = next(each for each in manifests(directory) if each["kind"] == "NetworkPolicy")
    [ports] = [
        {port["port"] for port in rule["ports"]}
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels.items()
    ]
    assert ports == {"control", "control-grpc", "control-metrics"}
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert not selected.items() <= labels.items(), "the server's policy lets it call nobody"
    for service in (each["spec"] for each in manifests(directory) if each["kind"] == "Service"):
        assert not service["selector"].items() <= labels.items()


def test_every_container_of_a_rollout_can_write_the_run_directory(case: tuple[Recipe, Path]) -> None:
    """Server and controller share it at one path, on one volume that both may write."""
    recipe, directory = case
    run = Path(CODE) / ".run" / recipe.name
    shared = [arms_file(run), observations_file(run), state_file(run), run / "model_repository" / "a"]
    shared.append(run / KEY_FILE)  # which the gateway draws at each start
    together = [
        [
            manifest(directory, "Deployment")["spec"]["template"]["spec"],
            job(directory)["spec"]["template"]["spec"],
        ],
        [patched(directory)["spec"]["template"]["spec"]],  # the gates' container, by kubectl exec
    ]
    for specs in together:
        volumes = set()
        for spec in specs:
            sources = {each.pop("name"): str(each) for each in copy.deepcopy(spec["volumes"])}
            for box in spec["containers"]:
                if box["name"] == "haproxy":
                    continue
                mounts = {Path(each["mountPath"]): each for each in box["volumeMounts"]}
                for path in shared:
                    mount = next(mounts[parent] for parent in path.parents if parent in mounts)
                    assert not mount.get("readOnly", False)
                    volumes.add((sources[mount["name"]], mount["mountPath"], mount.get("subPath", "")))
        assert len(volumes) == 1


def test_pods_of_two_revisions_have_run_directories_of_their_own(case: tuple[Recipe, Path]) -> None:
    """Rollout tools run both revisions side by side; the deployment's claim belongs to one server."""
    recipe, directory = case
    deployment = patched(directory)
    [run] = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "run"]
    assert run.keys() == {"name", "emptyDir"}
    surge = 1 if recipe.runtime == "embedded" else 0  # a second server may lack GPUs
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1 - surge},
    }
    if recipe.runtime == "embedded":
        [service] = documents(directory, "InferenceService")
        volumes = {each["name"]: each for each in service["spec"]["predictor"]["volumes"]}
        assert "emptyDir" in volumes["run"]
