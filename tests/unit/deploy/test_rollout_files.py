"""Tests of ``deploy/rollouts``: the examples for Argo Rollouts, Flagger and KServe.

Pods and services are checked against Kubernetes' schemas, the tools' own objects against theirs, addresses
against the gates that we serve. No cluster has seen them.
"""

from __future__ import annotations

import copy
import re
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from pipelines.canary.gates import HOOKS
from tests.support.custom_resources import problems
from tests.support.deployment_files import DEPLOY, Document, box, documents, one, pod
from tests.unit.deploy.test_deployment_files import CONFINED, KUBERNETES_VERSION

ROLLOUTS = DEPLOY / "rollouts"
SERVER = documents(DEPLOY / "server" / "server.yaml")


def examples(*kinds: str) -> list[Document]:
    found = [each for path in sorted(ROLLOUTS.glob("*.yaml")) for each in documents(path)]
    return [each for each in found if each.get("kind") in kinds]


def with_gates() -> Document:
    """Return the deployment after ``kubectl patch``, which merges lists by name; null removes a key."""
    deployment = copy.deepcopy(one(SERVER, "Deployment"))
    [patch] = documents(ROLLOUTS / "gates.yaml")
    deployment["spec"]["strategy"].update(patch["spec"]["strategy"])
    spec = deployment["spec"]["template"]["spec"]
    for kind, changed in patch["spec"]["template"]["spec"].items():
        named = {each["name"]: each for each in spec[kind]}
        for change in changed:
            named[change["name"]] = {**named.get(change["name"], {}), **change}
        spec[kind] = [
            {key: value for key, value in each.items() if value is not None} for each in named.values()
        ]
    return deployment


def pods() -> list[Document]:
    """Return the pod specs within the examples."""
    [service] = examples("InferenceService")
    of_knative = {"canaryTrafficPercent", "minReplicas", "maxReplicas", "timeout"}
    of_kserve = {key: value for key, value in service["spec"]["predictor"].items() if key not in of_knative}
    return [pod(with_gates()), of_kserve]


def test_pods_and_services_fit_kubernetes_and_are_confined() -> None:
    for document in (with_gates(), *examples("Service", "NetworkPolicy")):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    for spec in pods():
        wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(wrapped, KUBERNETES_VERSION, strict=True)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for each in spec["containers"]:
            assert each["securityContext"] == CONFINED
            assert {"cpu", "memory"} <= set(each["resources"]["limits"])
            assert {mount["name"] for mount in each.get("volumeMounts", [])} <= volumes


def test_objects_of_the_tools_have_only_fields_of_their_schemas() -> None:
    found = examples("Rollout", "AnalysisTemplate", "Canary", "InferenceService")
    assert len(found) == 4
    for document in found:
        assert problems(document) == []


def test_argo_waits_for_a_verdict_and_fails_on_a_rollback() -> None:
    """A limit of 0, the default, would end the analysis at the first inconclusive measurement."""
    [template] = examples("AnalysisTemplate")
    [web] = template["spec"]["metrics"]
    assert web["successCondition"] == 'result.action == "promote"'
    assert web["failureCondition"] == 'result.action == "roll_back"'
    assert "count" not in web and web["consecutiveSuccessLimit"] == 1 and web["inconclusiveLimit"] > 1000
    [rollout] = examples("Rollout")
    [first, _] = rollout["spec"]["strategy"]["canary"]["steps"]
    assert rollout["spec"]["workloadRef"]["name"] == one(SERVER, "Deployment")["metadata"]["name"]
    path = first["analysis"]["args"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert re.findall(r"\['(.*)'\]", path)[0] in rollout["metadata"]["annotations"]


def test_flagger_asks_the_gate_of_each_hooks_own_type() -> None:
    [canary] = examples("Canary")
    hooks = canary["spec"]["analysis"]["webhooks"]
    assert {hook["type"] for hook in hooks} == {"rollout", "confirm-promotion", "rollback"} <= set(HOOKS)
    for hook in hooks:
        assert urlsplit(hook["url"]).path == f"/gate/{hook['type']}"


def test_every_address_leads_to_the_gates_and_the_tools_may_ask_nothing_else() -> None:
    gates = box(pod(with_gates()), "gates")
    [port] = gates["ports"]
    assert gates["command"][gates["command"].index("--port") + 1] == str(port["containerPort"])
    services = {each["metadata"]["name"]: each["spec"] for each in examples("Service")}
    text = "".join(path.read_text() for path in ROLLOUTS.glob("*.yaml"))
    addresses = re.findall(r'"(http://[^"]+)"', text)
    assert len(addresses) == 4
    for address in addresses:
        parts = urlsplit(address)
        # The tools' controllers ask from their own namespaces, so the service's is a part of its name.
        name, _, namespace = str(parts.hostname).partition(".")
        assert (namespace, parts.hostname in gates["command"]) == ("default", True)
        [exposed] = services[name]["ports"]
        assert (exposed["port"], exposed["targetPort"]) == (parts.port, port["name"])
        for named in parse_qs(parts.query).get("candidate", ()):
            assert named.startswith(("/packages/", "{{")), "as the command names it that starts a rollout"
    labels = with_gates()["spec"]["template"]["metadata"]["labels"]
    for policy in examples("NetworkPolicy"):
        [rule] = policy["spec"]["ingress"]
        assert rule["ports"] == [{"port": "gates"}]
        selected = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"]
        # Flagger gives the serving pods another value of the label that it selects by.
        assert selected.removesuffix("-primary") == labels["app.kubernetes.io/instance"]
        assert any(selected == each["selector"]["app.kubernetes.io/instance"] for each in services.values())
