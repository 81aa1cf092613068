"""Tests of packages, keys and images in rendered deployment files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from build.deployment import PYTHON, SETTINGS, render_deployment
from build.recipe import REPOSITORY_ROOT, Recipe
from build.rendering import image as images_of_servers
from build.rendering.image import environment_image, server_image
from build.rendering.launch import launch_document
from pipelines.deploy.__main__ import _parse
from pipelines.errors import PackageError
from tests.support.deployment_files import RECIPES, container, manifest, pod_templates
from tests.unit.build.test_package import key_pair

IMAGE_VOLUMES_VERSION = "1.35"  # the first that has image volumes without a feature gate


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    recipe = RECIPES[request.param]
    return recipe, render_deployment(recipe, tmp_path_factory.mktemp("run"))


def test_no_file_for_a_cluster_names_this_machine(case: tuple[Recipe, Path]) -> None:
    """Compose runs here: it builds the image, and names the packages and its run directory."""
    directory = case[1]
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "compose.yaml"]
    assert len(files) > 8
    assert [path for path in files if str(REPOSITORY_ROOT) in path.read_text()] == []


def test_other_machines_render_what_the_leader_renders(tmp_path: Path) -> None:
    templates = pod_templates(render_deployment(RECIPES["two machines"], tmp_path))
    [render] = templates["ranks"]["spec"]["initContainers"]
    served, run = _parse(container(templates["server"])["command"][3:]), container(templates["ranks"])
    assert render["command"][:3] == [PYTHON, "-m", "build.repository"]
    given = dict(zip(render["command"][3::2], render["command"][4::2], strict=False))
    assert given["--package"] == str(served.package)
    assert render["command"][-2:] == ["--run-directory", str(served.directory)]
    assert {"name": "run", "mountPath": str(served.directory)} in render["volumeMounts"]
    assert {"name": "run", "mountPath": str(served.directory)} in run["volumeMounts"]


def test_a_key_that_was_given_is_demanded_everywhere(tmp_path: Path) -> None:
    public = key_pair(tmp_path, "ours")[1]
    for name, recipe in RECIPES.items():
        directory = render_deployment(recipe, tmp_path / name, public_key=public)
        assert manifest(directory, "ConfigMap")["data"]["package.pub"] == public.read_text()
        assert (directory / "package.pub").read_text() == public.read_text()
        texts = {path: path.read_text() for path in directory.rglob("*.yaml")}
        assert sum("--public-key=" in text for text in texts.values()) >= 1
        for path, text in texts.items():
            assert text.count("--public-key=") == text.count(f"--public-key={SETTINGS}/package.pub"), path
            starts = '"pipelines.canary", "start"'
            of_a_fleet = f'{starts}, "--fleet"'  # its agents check the packages
            programs = text.count('"--package"') + text.count('"pipelines.canary", "agent"')
            programs += text.count(starts) - text.count(of_a_fleet)
            assert programs <= text.count("--public-key="), path
    (tmp_path / "no.pub").write_text("no key")
    with pytest.raises(PackageError, match="cannot be used as a key"):
        render_deployment(RECIPES["embedded"], tmp_path, public_key=tmp_path / "no.pub")


@pytest.mark.parametrize("name", ["embedded", "one GPU"])
def test_packages_may_come_from_an_image(name: str, tmp_path: Path) -> None:
    """The patch is merged as ``kubectl patch`` does: volumes by name."""
    directory = render_deployment(RECIPES[name], tmp_path)
    deployment = manifest(directory, "Deployment")
    text = (directory / "package-image.yaml").read_text()
    patch = yaml.safe_load(
        text.replace("reference: PACKAGES", "reference: registry/pairs@sha256:" + "0" * 64)
    )
    [change] = patch["spec"]["template"]["spec"]["volumes"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    [packages] = [volume for volume in volumes if volume["name"] == change["name"]]
    packages.update(change)
    assert packages.pop("persistentVolumeClaim") is None
    kubernetes_validate.validate(deployment, IMAGE_VOLUMES_VERSION, strict=True)
    packages["image"]["pullPolicie"] = packages["image"].pop("pullPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, IMAGE_VOLUMES_VERSION, strict=True)


def test_the_tag_of_an_image_names_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def images() -> list[str]:
        container = launch_document(RECIPES["embedded"])["container"]
        return [
            environment_image("embedded", container),
            server_image("embedded", container, "server"),
            server_image("embedded", container, "node"),
            server_image("tensorrt_llm", container, "server"),
            server_image("embedded", container + "-2", "server"),
            environment_image("embedded", container + "-2"),
        ]

    found = images()
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"draftproof-[a-z-]+:[0-9a-f]{12}", image) for image in found)
    for name in ("build", "model_repository", "pipelines", "requirements"):
        shutil.copytree(REPOSITORY_ROOT / name, tmp_path / name)
    monkeypatch.setattr(images_of_servers, "REPOSITORY_ROOT", tmp_path)
    assert images() == found
    (tmp_path / "build" / "__pycache__" / "new.pyc").touch()
    assert images() == found
    (tmp_path / "pipelines" / "new.py").touch()
    assert images()[0] == found[0] and images()[1] != found[1]
    (tmp_path / "requirements" / "run.txt").write_text("")
    assert images()[0] != found[0]
