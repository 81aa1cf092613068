"""Tests of ``deploy/kserve``: a runtime for CPUs, and a canary of LLMInferenceService that asks our gate.

The scripts of the containers run with a stand-in for Python, and our own parsers read what they start. KServe
merges configurations as ``kubectl patch`` does (pkg/controller/v1alpha2/llmisvc/config_merge.go @aaac4e29).
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest

from build import repository
from build.recipe import load_recipe
from pipelines.deploy.__main__ import _parse
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import HOST
from tests.support.custom_resources import problems
from tests.support.deployment_files import CODE, DEPLOY, PYTHON, RUN, Document, box, documents, one, pod
from tests.unit.deploy.test_deployment_files import CONFINED, KUBERNETES_VERSION

RUNTIME = documents(DEPLOY / "kserve" / "runtime.yaml")
CANARY = documents(DEPLOY / "kserve" / "canary.yaml")
OF_KSERVE = {"ServingRuntime", "InferenceService", "LLMInferenceService", "LLMInferenceServiceConfig"}
# Volumes and mounts of KServe's own template (config/llmisvcconfig/config-llm-template.yaml @aaac4e29).
TEMPLATE = {
    "volumes": [
        *({"name": name, "emptyDir": {}} for name in ("home", "model-cache", "tmp-dir")),
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
}


def merged(base: Any, patch: Any) -> Any:
    """Return a strategic merge: maps by key, lists of named things by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {key: merged(base.get(key), value) for key, value in patch.items()} | {
            key: value for key, value in base.items() if key not in patch
        }
    if isinstance(base, list) and all(isinstance(each, dict) and "name" in each for each in patch):
        names = {each["name"]: each for each in base}
        for each in patch:
            names[each["name"]] = merged(names.get(each["name"]), each)
        return list(names.values())
    return copy.deepcopy(patch)


def llm_pod(name: str) -> Document:
    """Return the pod that KServe makes of a LLMInferenceService."""
    found = [*RUNTIME, *CANARY]
    spec: Any = TEMPLATE
    for reference in one(found, "LLMInferenceService", name)["spec"]["baseRefs"]:
        config = one(found, "LLMInferenceServiceConfig", reference["name"])
        spec = merged(spec, config["spec"]["template"])
    return dict(spec)


def runtime_pod() -> Document:
    spec = one(RUNTIME, "ServingRuntime", "draftproof-cpu")["spec"]
    return {"containers": spec["containers"], "volumes": spec["volumes"]}


PODS = {
    "ServingRuntime": runtime_pod(),
    "LLMInferenceService": llm_pod("qwen-coder"),
    "stable": llm_pod("draftproof-v1"),
    "candidate": llm_pod("draftproof-v2"),
    "job": pod(one(CANARY, "Job", "draftproof-promote")),
}
SERVERS = [name for name in PODS if name != "job"]


def test_every_object_fits_its_schema() -> None:
    for document in (*RUNTIME, *CANARY):
        if document["kind"] in OF_KSERVE:
            assert problems(document) == []
        else:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_a_field_that_a_schema_does_not_have_is_a_problem() -> None:
    document = copy.deepcopy(one(CANARY, "LLMInferenceService", "draftproof-v1"))
    document["spec"]["router"]["route"]["wieght"] = 1
    document["spec"]["router"]["route"]["weight"] = "1"
    found = problems(document)
    assert any("wieght" in each for each in found)
    assert any("'1' is not of type 'integer'" in each for each in found)


@pytest.mark.parametrize("name", PODS)
def test_every_pod_is_confined_and_mounts_what_it_has(name: str) -> None:
    spec = PODS[name]
    wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(wrapped, KUBERNETES_VERSION, strict=True)
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    for each in [*spec["containers"], *spec.get("initContainers", ())]:
        security = {**spec.get("securityContext", {}), **each["securityContext"]}
        assert CONFINED.items() <= security.items()
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
        assert {"cpu", "memory"} <= set(each["resources"]["limits"])
        assert {mount["name"] for mount in each.get("volumeMounts", ())} <= volumes


STAND_IN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> {log}
echo . >> {log}
"""


def started(name: str, tls: bool, tmp_path: Path) -> tuple[list[list[str]], FrontDoorSettings]:
    """Run a server's script; returns what it starts, and the settings that it writes."""
    container = PODS[name]["containers"][0]
    shell, option, script, *words = container["command"]
    assert "".join(re.findall(r"\{\{ if (\S+) \}\}", script)) in ("", ".GlobalConfig.EnableTLS")
    script = re.sub(r"\{\{ if \S+ \}\}(.*?)\{\{ end \}\}", r"\1" if tls else "", script)
    script = re.sub(r"\{\{ ?(\.Name|\.Spec\.Model\.Name) ?\}\}", "qwen-coder", script)
    assert "{{" not in script
    stand_in, log = tmp_path / "python", tmp_path / "log"
    stand_in.write_text(STAND_IN.format(log=log))
    stand_in.chmod(0o755)
    script = script.replace(PYTHON, str(stand_in)).replace("/tmp/front_door.yaml", f"{tmp_path}/door.yaml")
    values = {each["name"]: each["value"] for each in container["env"]}
    command = [shell, option, script, *words, "--drain-s", "7"]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", **values}, check=True, timeout=120)
    calls = [call.splitlines() for call in log.read_text().split(".\n")[:-1]]
    return calls, FrontDoorSettings.read(tmp_path / "door.yaml")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("name", SERVERS)
def test_a_script_builds_or_takes_the_pair_and_becomes_the_server(
    name: str, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, settings = started(name, tls, tmp_path)
    *builds, (_, module, *words) = calls
    options = _parse(words)
    assert module == "pipelines.deploy"
    assert (options.command.__name__, str(options.directory), options.drain_s) == ("_run", RUN, 7)
    assert options.address == HOST, "only OpenAI's API is open"
    port = 8080 if name == "ServingRuntime" else 8000
    assert (options.openai_port, settings.address) == (port, "0.0.0.0")
    assert port not in (options.http_port, options.grpc_port, options.metrics_port)
    assert settings.keys == "/etc/draftproof/keys/keys.json"
    assert (settings.tls is not None) == (tls and name != "ServingRuntime")
    if name in ("stable", "candidate"):
        assert (builds, str(options.package)) == ([], "/mnt/models")
        return
    [[_, module, *words]] = builds
    assert (module, options.package) == ("build.repository", None)
    built: list[Any] = []
    monkeypatch.setattr(repository, "_render", lambda options: {"seen": built.append(options)})
    assert repository.main(words) == 0
    [given] = built
    assert (given.recipe, str(given.run_directory)) == ("/etc/draftproof/recipe/recipe.yaml", RUN)
    assert given.served_model_name == "qwen-coder"


def test_what_a_container_writes_is_on_a_volume() -> None:
    for name in SERVERS:
        container = PODS[name]["containers"][0]
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert {RUN, f"{CODE}/engines"} <= writable <= {RUN, f"{CODE}/engines", "/dev/shm", "/tmp"}
        cache = {each["name"]: each["value"] for each in container["env"]}["DRAFTPROOF_CACHE"]
        assert cache.startswith(f"{CODE}/engines/")


def test_the_recipe_reads_the_two_files_where_kserve_puts_them(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(one(RUNTIME, "ConfigMap", "draftproof-recipe")["data"]["recipe.yaml"])
    recipe = load_recipe(str(path))
    assert (recipe.target.checkpoint, recipe.draft.checkpoint) == (
        "/mnt/models/target.gguf",
        "/mnt/models/draft.gguf",
    )
    cores = int(runtime_pod()["containers"][0]["resources"]["limits"]["cpu"])
    assert recipe.target.num_threads == recipe.draft.num_threads == cores - 1


def test_the_candidate_gets_requests_by_the_job_alone() -> None:
    routes = {
        name: one(CANARY, "LLMInferenceService", name)["spec"]["router"]["route"]
        for name in ("draftproof-v1", "draftproof-v2")
    }
    assert routes["draftproof-v1"] == {"group": "draftproof", "weight": 1}
    assert routes["draftproof-v2"] == {"group": "draftproof", "weight": 0}
    job = PODS["job"]
    gate, *patches = job["initContainers"] + job["containers"]
    moved = {each["command"][3]: json.loads(each["command"][-1]) for each in patches}
    assert list(moved) == ["draftproof-v2", "draftproof-v1"], "first the new one gets requests"
    for name, weight in (("draftproof-v2", 1), ("draftproof-v1", 0)):
        assert moved[name] == {"spec": {"router": {"route": {"weight": weight}}}}
    [rule] = one(CANARY, "Role", "draftproof-promote")["rules"]
    assert (set(rule["resourceNames"]), rule["verbs"]) == (set(moved), ["get", "patch"])
    assert job["serviceAccountName"] == "draftproof-promote"
    address = urlsplit(gate["command"][-1])
    service = one(CANARY, "Service", str(address.hostname))["spec"]
    labels = one(CANARY, "LLMInferenceService", "draftproof-v1")["spec"]["labels"]
    assert service["selector"] == labels
    assert "labels" not in one(CANARY, "LLMInferenceService", "draftproof-v2")["spec"]
    gates = box(PODS["stable"], "gates")
    assert gates["command"][gates["command"].index("--allow-host") + 1] == address.hostname
    assert (
        [port["port"] for port in service["ports"]]
        == [address.port]
        == [port["containerPort"] for port in gates["ports"]]
    )
    policy = one(CANARY, "NetworkPolicy", "draftproof-llm-gates")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    [peer] = policy["ingress"][0]["from"]
    template = one(CANARY, "Job", "draftproof-promote")["spec"]["template"]
    assert peer["podSelector"]["matchLabels"] == template["metadata"]["labels"]
