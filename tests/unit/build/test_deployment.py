"""Tests of rendered deployment files: Kubernetes' schemas, commands, mounts, and images.

Kubernetes manifests are checked strictly (unknown fields are refused) against the API server's schemas, from
the package kubernetes-validate. No package has LeaderWorkerSet's schema: its two pod templates are checked as
Kubernetes' PodTemplate, its own fields against the list below.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from build.deployment import (
    PYTHON,
    SETTINGS,
    TEMPLATES,
    main,
    render_deployment,
    template_folders,
    template_values,
)
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.rendering.image import CODE, server_image
from build.rendering.launch import launch_document, pinned
from build.repository import render_recipe
from pipelines.deploy.__main__ import _parse
from pipelines.deploy.containers import PYTHON as PYTHON_OF_CONTAINERS
from pipelines.deploy.ports import HOST
from pipelines.deploy.triton.nvidia_triton import SSH_DIRECTORY, SSH_PORT
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import RecipeError, RepositoryError
from tests.support.deployment_files import (
    RECIPES,
    compose,
    container,
    manifest,
    manifests,
    pod_templates,
    proxy,
    user_of_the_image,
)
from tests.support.gpu_recipes import gpu_recipe
from tests.unit.canary.test_preflight import write_engine

KUBERNETES_VERSION = "1.30"  # the oldest supported version; later ones accept its manifests

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
    """Return the files of the recipe with ranks on two machines."""
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
    assert kinds == {*workload, "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"}


def test_the_schemas_refuse_what_does_not_fit(case: tuple[Recipe, Path]) -> None:
    """Negative control of the test above."""
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
        assert all(each["securityContext"] == box for each in template["spec"]["containers"])
        assert all(
            {"cpu", "memory"} <= set(each["resources"]["limits"]) for each in template["spec"]["containers"]
        )
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
    templates = pod_templates(directory).values()
    images = {each["image"] for template in templates for each in ours(template)}
    target = "node" if recipe.tensorrt_llm.num_nodes > 1 else "server"
    assert images == {server_image(recipe.runtime, launch_document(recipe)["container"], target)}
    if (directory / "compose.yaml").exists():
        images |= {service["image"] for service in compose(directory)["services"].values()}
        assert proxy(pod_templates(directory)["server"])["image"] in images
        assert compose(directory)["services"]["server"]["build"]["args"] == {
            "BASE_IMAGE": launch_document(recipe)["container"]
        }
    for image in images | {proxy(pod_templates(directory)["server"])["image"]}:
        assert pinned(image, "image") == image


def ours(template: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod that run the server's image."""
    return [container(template), *template["spec"].get("initContainers", [])]


def commands(directory: Path) -> list[list[str]]:
    found = [container(pod_templates(directory)["server"])["command"]]
    if (directory / "compose.yaml").exists():
        found.append(compose(directory)["services"]["server"]["command"])
    return found


def test_containers_run_our_own_command(case: tuple[Recipe, Path]) -> None:
    """The gateway listens beyond HAProxy's loopback only where a rollout's job needs it."""
    recipe, directory = case
    of_pods, *of_compose = commands(directory)
    is_asked_by_jobs = recipe.tensorrt_llm.num_nodes == 1
    for command in (of_pods, *of_compose):
        assert command[:3] == [PYTHON, "-m", "pipelines.deploy"]
        options = _parse(command[3:])
        assert options.command.__name__ == "_run"
        assert options.directory == Path(CODE) / ".run" / recipe.name
        assert options.address == ("0.0.0.0" if is_asked_by_jobs and command is of_pods else HOST)
        assert options.package == Path("/packages") / recipe.name
        assert options.public_key is None
        assert options.front_door == Path(SETTINGS) / "front_door.yaml"
    dockerfile = (REPOSITORY_ROOT / "pipelines" / "deploy" / "Dockerfile").read_text()
    assert PYTHON == PYTHON_OF_CONTAINERS
    assert str(Path(PYTHON).parents[1]) in dockerfile
    for folder in ("build", "pipelines", "model_repository"):
        assert f"COPY {folder} {CODE}/{folder}\n" in dockerfile
    sent = (REPOSITORY_ROOT / ".dockerignore").read_text().splitlines()
    assert {line for line in sent if line.startswith("!")} == {
        *("!build", "!pipelines", "!model_repository", "!requirements"),
    }


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


def test_a_container_writes_to_its_run_directory_alone(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    run = f"{CODE}/.run/{recipe.name}"
    for template in pod_templates(directory).values():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        boxes = [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]
        assert set(volumes) == {mount["name"] for each in boxes for mount in each["volumeMounts"]}
        assert volumes["packages"]["persistentVolumeClaim"] == {
            "claimName": f"draftproof-{recipe.name}-packages",
            "readOnly": True,
        }
        for each in ours(template):
            mounts = {mount["mountPath"]: mount for mount in each["volumeMounts"]}
            assert mounts["/packages"] == {"name": "packages", "mountPath": "/packages", "readOnly": True}
            writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
            assert run in writable and writable <= {run, "/dev/shm", "/tmp"}
            for path in writable - {run}:
                assert "emptyDir" in volumes[mounts[path]["name"]]
            others = set(mounts) - writable - {"/packages"}
            assert others <= {SETTINGS, str(SSH_DIRECTORY), "/etc/draftproof/keys"}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"


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


def test_an_embedded_server_gets_the_memory_of_what_is_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPES["embedded"]
    engines = [write_engine(tmp_path / role, role) for role in ("draft", "target")]

    def gib() -> int:
        return int(template_values(recipe, run=tmp_path)["memory_gib"])

    assert gib() == 12
    assert "warning: " in capsys.readouterr().out
    repository = render_recipe(recipe, *engines, tmp_path)
    assert gib() == 12
    with (engines[1] / "engine.bin").open("r+b") as file:
        file.truncate(20 << 30)  # a sparse file: 20 GiB once, caches and processes, with 20% to spare
    assert 25 < gib() < 35
    assert "warning" not in capsys.readouterr().out
    directory = render_deployment(recipe, tmp_path)
    assert compose(directory)["services"]["server"]["deploy"]["resources"]["limits"]["memory"] == f"{gib()}g"
    claim = manifest(directory, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) > 2 * 20, "files of the weights need their size twice"
    pair = PairRecord.read(repository / "speculative")
    (repository / "speculative_2").mkdir()
    pair.write(repository / "speculative_2")
    assert gib() > 50, "a promoted pair is loaded too"
    for loop in ("speculative", "speculative_2"):
        dataclasses.replace(pair, runtime="tensorrt_llm", num_kv_blocks={}).write(repository / loop)
    assert gib() == 12, "another runtime's pair says nothing"


def test_nothing_is_left_to_fill_in(case: tuple[Recipe, Path]) -> None:
    recipe, directory = case
    for path in directory.rglob("*"):
        if path.is_file():
            left = path.read_text().replace("${datasource}", "")  # a variable of Grafana's dashboard
            assert "${" not in left, path
    named = {
        name
        for folder in template_folders(recipe)
        for path in (TEMPLATES / folder).rglob("*")
        if path.is_file()
        for name in re.findall(r"\$\{(\w+)\}", path.read_text())
    }
    assert named == set(template_values(recipe, run=directory.parents[1]))


def test_rendering_again_replaces_the_whole(tmp_path: Path) -> None:
    directory = render_deployment(RECIPES["embedded"], tmp_path)
    (directory / "left_over").touch()
    assert not (render_deployment(RECIPES["one GPU"], tmp_path) / "left_over").exists()
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"container", "deployment"}


def test_a_value_without_a_use_is_refused(tmp_path: Path) -> None:
    for folder in ("every", "one_pod", "embedded"):
        (tmp_path / "templates" / folder).mkdir(parents=True)
    (tmp_path / "templates" / "every" / "a.yaml").write_text('name: "${name}"\n')
    with pytest.raises(
        RepositoryError, match="some values are used by no template; checkout, code, container"
    ):
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
        (dataclasses.replace(load_recipe("demo"), name="a" * 60), "at most 46"),
        (dataclasses.replace(load_recipe("demo"), name="demo_"), "not ending in -"),
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
        lambda recipe, image, public_key: render_deployment(recipe, tmp_path, image),
    )
    assert main(["--recipe", "demo", "--runtime", "tensorrt_llm"]) == 0
    document = yaml.safe_load(capsys.readouterr().out.splitlines()[-1])
    assert "kubernetes/deployment.yaml" in document["files"]
    assert main(["--recipe", "no-such-recipe"]) == 1
    assert "there is no recipe no-such-recipe" in capsys.readouterr().err
