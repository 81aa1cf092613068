"""Rendered deployment files: Kubernetes' own schemas, the commands and mounts that they hold, alerts.

Kubernetes manifests are checked strictly (unknown fields refused) against the schemas of the API server,
from the package kubernetes-validate. No package carries LeaderWorkerSet's: its two pod templates are
checked as Kubernetes' PodTemplate, its own fields against the list below.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from build.deployment import PYTHON, TEMPLATES, main, render_deployment, template_folders, template_values
from build.launch import launch_document, pinned
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.templates import TEMPLATES as REPOSITORY_TEMPLATES
from build.templates import config_templates
from pipelines.deploy.__main__ import _parse
from pipelines.deploy.containers import PYTHON as PYTHON_OF_CONTAINERS
from pipelines.deploy.launch import Launch
from pipelines.deploy.nvidia_triton import SSH_DIRECTORY, SSH_PORT
from pipelines.errors import RecipeError, RepositoryError
from tests.deployment_files import (
    RECIPES,
    compose,
    container,
    manifest,
    manifests,
    pod_templates,
    user_of_the_image,
)
from tests.gpu_recipes import gpu_recipe

KUBERNETES_VERSION = "1.30"  # the oldest whose manifests these are meant to be; later ones accept them

# kubernetes-sigs/lws v0.9.0, api/leaderworkerset/v1/leaderworkerset_types.go and the CRD made from it.
LWS_SPEC = {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
LWS_TEMPLATE = {
    "leaderTemplate",
    "workerTemplate",
    "size",
    "restartPolicy",
    "subGroupPolicy",
    "volumeClaimTemplates",
    "persistentVolumeClaimRetentionPolicy",
}
LWS_RESTART = {"Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"}
LWS_STARTUP = {"LeaderCreated", "LeaderReady"}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipe with ranks on two machines gets."""
    return render_deployment(RECIPES["two machines"], tmp_path_factory.mktemp("several"))


def test_every_manifest_fits_the_schema_of_kubernetes(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    kinds = set()
    for document in manifests(directory):
        kinds.add(document["kind"])
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
    for template in pod_templates(directory).values():
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
    of_the_server = {"Deployment", "PersistentVolumeClaim"}
    workload = {"LeaderWorkerSet"} if recipe.tensorrt_llm.num_nodes > 1 else of_the_server
    assert kinds == {*workload, "Service", "PodDisruptionBudget", "NetworkPolicy"}


def test_the_schemas_refuse_what_does_not_fit(case: tuple[Recipe, Path]) -> None:
    """Or the test above would show nothing."""
    document = manifest(case[1], "Service")
    document["spec"]["portz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_the_leader_worker_set_has_the_fields_of_its_api(several: Path) -> None:
    document = manifest(several, "LeaderWorkerSet")
    assert document["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec, template = document["spec"], document["spec"]["leaderWorkerTemplate"]
    assert set(spec) <= LWS_SPEC
    assert {"leaderTemplate", "workerTemplate"} <= set(template) <= LWS_TEMPLATE
    assert template["size"] == 2
    assert template["restartPolicy"] in LWS_RESTART
    assert spec["startupPolicy"] in LWS_STARTUP
    # Its controller makes a headless service of its own name (docs/reference, subdomainPolicy Shared).
    assert document["metadata"]["name"] != manifest(several, "Service")["metadata"]["name"]
    assert len(f"{document['metadata']['name']}-999-99") <= 63


def test_every_container_is_confined_and_limited(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    for template in pod_templates(directory).values():
        pod, box = template["spec"]["securityContext"], container(template)["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] == pod["runAsGroup"] == user_of_the_image()
        assert box["readOnlyRootFilesystem"] is True
        assert box["allowPrivilegeEscalation"] is False
        assert box["capabilities"] == {"drop": ["ALL"]}
        assert template["spec"]["automountServiceAccountToken"] is False
        limits = container(template)["resources"]["limits"]
        assert {"cpu", "memory"} <= set(limits)
        assert ("nvidia.com/gpu" in limits) == (recipe.runtime == "tensorrt_llm")


def test_a_pod_has_as_many_gpus_as_the_launch_file_names(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    wanted = {"embedded": None, "one GPU": "1", "four GPUs": "4", "two machines": "8"}
    name = next(name for name, known in RECIPES.items() if known is recipe)
    for template in pod_templates(directory).values():
        assert container(template)["resources"]["limits"].get("nvidia.com/gpu") == wanted[name]


def test_no_image_can_change_by_itself(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    images = {container(template)["image"] for template in pod_templates(directory).values()}
    assert images == {launch_document(recipe)["image"]}
    if (directory / "compose.yaml").exists():
        images |= {service["image"] for service in compose(directory)["services"].values()}
        assert compose(directory)["services"]["server"]["build"]["args"] == {
            "BASE_IMAGE": launch_document(recipe)["container"]
        }
    for image in images:
        assert pinned(image, "image") == image


def commands(directory: Path) -> list[list[str]]:
    found = [container(pod_templates(directory)["server"])["command"]]
    if (directory / "compose.yaml").exists():
        found.append(compose(directory)["services"]["server"]["command"])
    return found


def test_containers_run_our_own_command_on_every_interface(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    for command in commands(directory):
        assert command[:3] == [PYTHON, "-m", "pipelines.deploy"]
        options = _parse(command[3:])
        assert options.command.__name__ == "_run"
        assert options.directory == REPOSITORY_ROOT / ".run" / recipe.name
        assert options.address == "0.0.0.0"
        assert options.rendered == (Path("/rendered") if "/rendered" in command else None)
    dockerfile = (REPOSITORY_ROOT / "pipelines" / "deploy" / "Dockerfile").read_text()
    assert PYTHON == PYTHON_OF_CONTAINERS
    assert str(Path(PYTHON).parents[1]) in dockerfile


def test_the_ranks_of_other_machines_wait_for_mpi(several: Path) -> None:
    template = pod_templates(several)["ranks"]
    command = container(template)["command"]
    assert command[0] == "/usr/sbin/sshd"
    assert f"-p{SSH_PORT}" in command
    assert f"-h{SSH_DIRECTORY}/id_ed25519" in command
    assert "-oPasswordAuthentication=no" in command
    assert container(template)["ports"] == [{"name": "ssh", "containerPort": SSH_PORT}]
    keys = {"name": "ssh", "mountPath": str(SSH_DIRECTORY), "readOnly": True}
    for pod in pod_templates(several).values():
        assert keys in container(pod)["volumeMounts"]


def test_probes_ask_triton_and_allow_for_loading(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    server = container(pod_templates(directory)["server"])
    assert server["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    assert server["readinessProbe"]["httpGet"] == {"path": "/v2/models/router/ready", "port": "http"}
    startup = server["startupProbe"]
    assert startup["httpGet"]["path"] == "/v2/models/router/ready"
    assert config_templates(REPOSITORY_TEMPLATES / "router", recipe.runtime), "a model of the repository"
    patience_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert patience_s == Launch(runtime=recipe.runtime).ready_timeout_s
    if (directory / "compose.yaml").exists():
        check = compose(directory)["services"]["server"]["healthcheck"]
        assert check["start_period"] == f"{patience_s}s"
        assert "/v2/models/router/ready" in check["test"][-1]


def test_all_is_mounted_read_only_where_it_lies_but_the_run_directory(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    run = f"{REPOSITORY_ROOT}/.run/{recipe.name}"
    inside = {str(REPOSITORY_ROOT): "."}
    if recipe.tensorrt_llm.num_nodes > 1:
        rendered = [f".run/{recipe.name}/{name}" for name in ("model_repository", "launch.json")]
        inside.update({f"{REPOSITORY_ROOT}/{path}": path for path in rendered})
    else:
        inside["/rendered"] = f".run/{recipe.name}"
    for template in pod_templates(directory).values():
        mounts = {mount["mountPath"]: mount for mount in container(template)["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert set(volumes) == {mount["name"] for mount in mounts.values()}
        for path, in_the_checkout in inside.items():
            assert mounts[path]["readOnly"] is True
            source = volumes[mounts[path]["name"]]["persistentVolumeClaim"]
            assert source["readOnly"] is True
            assert mounts[path].get("subPath", ".") == in_the_checkout
        for path in ("/dev/shm", "/tmp"):
            assert "emptyDir" in volumes[mounts[path]["name"]]
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert "readOnly" not in mounts[run]
        assert set(mounts) - set(inside) - {run, "/dev/shm", "/tmp"} <= {str(SSH_DIRECTORY)}


def test_the_run_directory_outlives_its_pod_and_is_one_servers(case: tuple[Recipe, Path]) -> None:
    """Two servers in one would take each other's sockets, so the old one ends before the new one begins."""
    recipe, directory = case
    if recipe.tensorrt_llm.num_nodes > 1:
        return  # ranks that MPI started take no candidate
    deployment = manifest(directory, "Deployment")
    [claimed] = [
        volume["persistentVolumeClaim"]
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "run"
    ]
    claim = manifest(directory, "PersistentVolumeClaim")
    assert claimed == {"claimName": claim["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_services_and_policies_select_the_pods_that_they_mean(case: tuple[Recipe, Path]) -> None:
    directory = case[1]
    labels = {name: template["metadata"]["labels"] for name, template in pod_templates(directory).items()}

    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, own in labels.items() if selector.items() <= own.items()}

    service = manifest(directory, "Service")["spec"]
    assert selected(service["selector"]) == {"server"}
    ports = {port["name"] for port in container(pod_templates(directory)["server"])["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == ports
    assert selected(manifest(directory, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]) == {
        "server"
    }
    policy = manifest(directory, "NetworkPolicy")["spec"]
    assert selected(policy["podSelector"]["matchLabels"]) == set(labels)
    assert {port["port"] for rule in policy["ingress"] for port in rule.get("ports", [])} <= ports
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_nothing_is_left_to_fill_in(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    for path in directory.rglob("*"):
        assert not path.is_file() or "${" not in path.read_text()
    named = {
        name
        for folder in template_folders(recipe)
        for path in (TEMPLATES / folder).rglob("*")
        if path.is_file()
        for name in re.findall(r"\$\{(\w+)\}", path.read_text())
    }
    assert named == set(template_values(recipe))


def test_rendering_again_replaces_the_whole(tmp_path: Path) -> None:
    directory = render_deployment(RECIPES["embedded"], tmp_path)
    (directory / "left_over").touch()
    assert not (render_deployment(RECIPES["one GPU"], tmp_path) / "left_over").exists()
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["deployment"]


def test_a_value_without_a_use_is_refused(tmp_path: Path) -> None:
    for folder in ("every", "one_pod", "embedded"):
        (tmp_path / "templates" / folder).mkdir(parents=True)
    (tmp_path / "templates" / "every" / "a.yaml").write_text('name: "${name}"\n')
    with pytest.raises(RepositoryError, match="no template uses some of the values; checkout, container"):
        render_deployment(RECIPES["embedded"], tmp_path / "run", templates=tmp_path / "templates")
    assert not (tmp_path / "run").exists()


def test_the_image_of_the_cluster_can_be_named() -> None:
    values = template_values(RECIPES["one GPU"], "registry.example/draftproof@sha256:" + "0" * 64)
    assert values["image"].startswith("registry.example/draftproof@sha256:")


@pytest.mark.parametrize("image", ["draftproof", "draftproof:latest", "registry.example:5000/draftproof"])
def test_an_image_without_a_fixed_tag_is_refused(image: str) -> None:
    with pytest.raises(RecipeError, match="has no fixed tag"):
        template_values(RECIPES["one GPU"], image)
    with pytest.raises(RecipeError, match=r"tensorrt_llm\.container"):
        launch_document(gpu_recipe(container=image))


def with_devices(*ids: int) -> Recipe:
    recipe = gpu_recipe(tp_size=len(ids))
    section = dataclasses.replace(recipe.target.tensorrt_llm, gpu_device_ids=ids)
    return dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, tensorrt_llm=section))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (with_devices(2, 3), r"gpu_device_ids \[0, 2, 3\]"),
        (dataclasses.replace(load_recipe("demo"), name="a" * 60), "DNS label of at most 46"),
        (dataclasses.replace(load_recipe("demo"), name="demo_"), "does not end in -"),
        (gpu_recipe(tp_size=3, num_nodes=2), "the same number on each of num_nodes=2"),
    ],
)
def test_what_cannot_be_deployed_is_refused(recipe: Recipe, told: str) -> None:
    with pytest.raises(RecipeError, match=told) as refused:
        template_values(recipe)
    assert all((refused.value.what, refused.value.values, refused.value.limit, refused.value.remedy))


def test_the_command_says_what_it_wrote(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "build.deployment.render_deployment",
        lambda recipe, image: render_deployment(recipe, tmp_path, image),
    )
    assert main(["--recipe", "demo", "--runtime", "tensorrt_llm"]) == 0
    document = yaml.safe_load(capsys.readouterr().out.splitlines()[-1])
    assert "kubernetes/deployment.yaml" in document["files"]
    assert main(["--recipe", "no-such-recipe"]) == 1
    assert "there is no recipe no-such-recipe" in capsys.readouterr().err


def test_the_tag_of_the_image_names_its_content() -> None:
    images = {launch_document(recipe)["image"] for recipe in RECIPES.values()}
    assert len(images) == 3  # one and four GPUs share theirs
    assert all(re.fullmatch(r"draftproof-[a-z-]+:[0-9a-f]{12}", image) for image in images)
    other = launch_document(gpu_recipe(container="nvcr.io/nvidia/tritonserver:26.05-trtllm-python-py3"))
    assert other["image"] not in images
