"""Tests of the image of ``make image``: what is in it, and that it serves in a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY_ROOT
from tests.integration.test_containers import RECIPE
from tests.support.deployment_files import CODE, RUN
from tests.support.empty_environment import run_in
from tests.support.namespaces import Container, Mount, Pod

pytestmark = [pytest.mark.triton, pytest.mark.long]

PROGRAMS = "mmdebstrap", "buildah", "umoci"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
MOST_BYTES = 900e6
USER = 10001
COMPILERS = re.compile(r"(gcc|g\+\+|cc|c\+\+|clang|ld|as|make)(-[\d.]+)?")
ASK = """
import json, urllib.request as u
asked = {"prompt": "def area(radius):", "max_tokens": 8, "temperature": 0}
headers = {"Content-Type": "application/json"}
found = u.urlopen(u.Request("http://127.0.0.1:9000/v1/completions", json.dumps(asked).encode(), headers))
print(json.load(found)["usage"]["completion_tokens"])
"""


def made(folder: Path) -> str:
    """Make the image in a folder and return its digest."""
    done = run_in(REPOSITORY_ROOT, "tools/image.sh", folder, timeout=1800)
    if "E: apt-get" in done.stderr:
        pytest.skip("no packages of Debian can be reached: not run")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    is_bookworm = SOURCES.exists() and sys.version_info[:2] == (3, 11)
    if not is_bookworm or os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip(f"needs root, Debian 12 with its Python 3.11, and {', '.join(PROGRAMS)}: not run")
    folder = tmp_path_factory.mktemp("image") / "image"
    made(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the image unpacked, with what a container of it is started with."""
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    (tag,) = (each["annotations"] for each in json.loads((image / "index.json").read_text())["manifests"])
    name = f"{image}:{tag['org.opencontainers.image.ref.name']}"
    done = run_in(image, "umoci", "unpack", "--image", name, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_image_holds_what_a_server_needs_and_no_more(bundle: Path) -> None:
    root = bundle / "rootfs"
    files = {path: path.lstat() for path in root.rglob("*")}
    assert sum({found.st_ino: found.st_size for found in files.values()}.values()) < MOST_BYTES
    own = {f"/{path.relative_to(root)}" for path, found in files.items() if found.st_uid != 0}
    assert own == {RUN}
    assert not [path for path in files if COMPILERS.fullmatch(path.name) and "bin" in path.parts[-2]]
    assert not [path for path, found in files.items() if path.is_file() and found.st_mode & 0o6000]
    kept = [path for path in files if path.name in ("pip", "sources.list") and ".cache" in path.parts]
    assert not kept and not list((root / "etc/apt").glob("sources.list*"))
    assert list((root / CODE[1:]).rglob("operators-*.so"))


@pytest.fixture
def configuration(image: Path) -> dict[str, Any]:
    """Return the image's own description."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((image / name).read_text())
        return found

    def blob(descriptor: dict[str, str]) -> dict[str, Any]:
        return read(f"blobs/{descriptor['digest'].replace(':', '/')}")

    return blob(blob(read("index.json")["manifests"][0])["config"])


@pytest.fixture
def container(bundle: Path, tmp_path: Path) -> Container:
    """Return the image's command, with a pair: without rights, and with a root that nobody may write."""
    recipe, package, run = tmp_path / "box.yaml", tmp_path / "package", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(RECIPE))
    build = sys.executable, "-m", "build.package", "--recipe", recipe, "--output", package
    done = run_in(REPOSITORY_ROOT, *build)
    assert done.returncode == 0, done.stderr
    run.mkdir()
    os.chown(run, USER, USER)
    process = json.loads((bundle / "config.json").read_text())["process"]
    assert process["user"] == {"uid": USER, "gid": USER}
    return Container(
        process["args"],
        process["cwd"],
        [Mount(package, "/packages/server", is_read_only=True), Mount(run, RUN)],
        ["/tmp"],
        dict(variable.split("=", 1) for variable in process["env"]),
        bundle / "rootfs",
        USER,
    )


def test_it_answers_in_a_container_and_ends_when_told(
    container: Container, configuration: dict[str, Any], tmp_path: Path
) -> None:
    kind, *health = configuration["config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    log, said = tmp_path / "log", tmp_path / "said"
    with Pod(tmp_path) as pod:

        def inside(*command: str) -> tuple[int, str]:
            said.write_text("")
            return pod.start(replace(container, command=command), said).wait(120), said.read_text()

        server = pod.start(container, log)
        for _ in range(240):
            if inside(*health)[0] == 0:
                break
            assert server.poll() is None, log.read_text()
            time.sleep(0.5)
        assert inside("python", "-c", ASK) == (0, "8\n"), log.read_text()
        assert inside("touch", f"{CODE}/written")[0] != 0 and inside("touch", f"{RUN}/written")[0] == 0
        assert inside("id", "-u")[1] == f"{USER}\n"
        assert "OpenVINO" in inside("draftproof", "--version")[1]
        server.terminate()
        assert server.wait(90) == 0, log.read_text()


def test_a_second_build_gives_the_same_digest(image: Path, tmp_path: Path) -> None:
    first = json.loads((image / "index.json").read_text())["manifests"][0]["digest"]
    assert made(tmp_path / "again") == first
