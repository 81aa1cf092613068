"""Examples for Argo Rollouts, Flagger and KServe, rendered; run: pytest tests/unit/test_canary_templates.py.

Their own objects are checked against ``tests.rollout_schemas``, pods and services against Kubernetes'
schemas, addresses against the gates that we serve. No cluster has seen them.
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

from build.deployment import render_deployment
from build.recipe import Recipe
from pipelines.canary.gates.verdict import HOOKS
from tests.deployment_files import RECIPES, container, manifest, pod_templates
from tests.rollout_schemas import SCHEMAS
from tests.unit.test_deployment import KUBERNETES_VERSION


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
    """The deployment after ``kubectl patch``: containers are merged by name, so another one is added."""
    deployment = copy.deepcopy(manifest(directory, "Deployment"))
    patch = yaml.safe_load((directory / "rollouts" / "gates.yaml").read_text())
    assert patch.keys() == {"spec"}
    assert patch["spec"]["template"]["spec"].keys() == {"containers"}
    deployment["spec"]["template"]["spec"]["containers"] += patch["spec"]["template"]["spec"]["containers"]
    return deployment


def pods(directory: Path) -> Iterator[dict[str, Any]]:
    """Pod specs within the examples."""
    yield patched(directory)["spec"]["template"]["spec"]
    for template in documents(directory, "AnalysisTemplate"):
        for metric in template["spec"]["metrics"]:
            if "job" in metric["provider"]:
                yield metric["provider"]["job"]["spec"]["template"]["spec"]
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
    expected = {"patch", "Rollout", "AnalysisTemplate", "Service", "NetworkPolicy", "Canary"}
    assert kinds == expected | ({"InferenceService"} if recipe.runtime == "embedded" else set())


def test_their_objects_fit_the_tools_schemas(directory: Path) -> None:
    for document in documents(directory, *SCHEMAS):
        jsonschema.validate(document, SCHEMAS[document["kind"]])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schemas_refuse_what_does_not_fit(kind: str, tmp_path: Path) -> None:
    """Or the test above would show nothing."""
    document = next(documents(render_deployment(RECIPES["embedded"], tmp_path), kind))
    changed = [{**document, "spec": {**document["spec"], "x": 1}}, {**document, "apiVersion": "v1"}]
    for name, value in document["spec"].items():
        changed.append({**document, "spec": {**document["spec"], name: [value]}})
    for wrong in changed:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMAS[kind])


def test_pods_and_services_fit_kubernetes(directory: Path) -> None:
    kubernetes_validate.validate(patched(directory), KUBERNETES_VERSION, strict=True)
    for document in documents(directory, "Service", "NetworkPolicy"):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    for spec in pods(directory):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def test_every_container_is_confined_and_mounts_what_its_pod_has(directory: Path) -> None:
    for spec in pods(directory):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in spec["volumes"]}
        for box in spec["containers"]:
            assert box["securityContext"]["readOnlyRootFilesystem"] is True
            assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(box["resources"]["limits"])
            assert {mount["name"] for mount in box["volumeMounts"]} <= volumes


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


def test_services_select_the_pods_that_hold_the_gates(directory: Path) -> None:
    labels = pod_templates(directory)["server"]["metadata"]["labels"]
    name = labels["app.kubernetes.io/instance"]
    for service in documents(directory, "Service"):
        selector = dict(service["spec"]["selector"])
        # Flagger gives the pods that serve another value of the label that it selects by.
        primary = selector["app.kubernetes.io/instance"].removesuffix("-primary")
        assert primary == name
        assert {**selector, "app.kubernetes.io/instance": primary}.items() <= labels.items()


def test_the_tools_may_ask_the_gates_and_nothing_else(directory: Path) -> None:
    """The server's own policy lets in only pods that are marked as clients."""
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
    [box] = service["spec"]["predictor"]["containers"]
    same = container(pod_templates(directory)["server"])
    for part in ("image", "command", "workingDir", "resources", "volumeMounts", "securityContext"):
        assert box[part] == same[part]
    assert box["name"] == "kserve-container"  # the name by which KServe knows the model's own container
