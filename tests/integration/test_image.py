"""Tests of the container image: its root filesystem serves a package in namespaces, as a runtime runs it.

There is no container engine. Users, processes, devices, the network, mounts and the read-only root are the
container's own; cgroups, seccomp profiles and a registry are missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from build.built_pair import BuiltPair
from build.deployment import render_deployment
from build.packaging.write import write_package
from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import grpc_client, tiny_recipe
from tests.support.deployment_files import compose
from tests.support.namespaces import Container, Mount, Pod, first_process
from tests.support.tiny_engines import build_tiny_pair

pytestmark = [pytest.mark.triton, pytest.mark.long]

ENVIRONMENT = REPOSITORY_ROOT / ".venv-image"
RECIPE = "tiny-image"
PROMPTS = ("def main(", "import os\n")
MAX_TOKENS = 40
ASK = """
import json, sys, urllib.request
def ask(path, body=None):
    url = "http://127.0.0.1:8000/v2/models/" + path
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(url, data, timeout=120).read()
ask("router/ready")
for prompt in sys.argv[2:]:
    body = {"text_input": prompt, "max_tokens": int(sys.argv[1]), "temperature": 0.0}
    print(json.dumps(json.loads(ask("generate/generate", body))["output_ids"]))
"""
ABOUT = """
import json, os, pathlib, pwd
def may_write(path):
    try:
        (pathlib.Path(path) / "written").touch()
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines())
image = ("/", "/opt/draftproof/code", "/opt/draftproof/venv", pwd.getpwuid(os.getuid()).pw_dir)
places = (*image, "/packages", "/tmp", os.environ["RUN"])
print(json.dumps({
    "user": [os.getuid(), os.getgid(), os.getgroups()],
    "capabilities": {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")},
    "writable": [place for place in places if may_write(place)],
    "sbom": json.loads(pathlib.Path("/opt/draftproof/sbom.cdx.json").read_text())["bomFormat"],
}))
"""


@dataclass(frozen=True)
class Image:
    """An image that was unpacked.

    Attributes:
        root: Its files.
        process: What its configuration says about processes, in the words of OCI's runtime specification.
    """

    root: Path
    process: dict[str, Any]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the image of the checkout, made anew."""
    missing = [name for name in ("mmdebstrap", "umoci") if shutil.which(name) is None]
    if missing or not (ENVIRONMENT / "image.stamp").exists():
        pytest.skip(f"not installed: {missing or ENVIRONMENT.name}; run: make image")
    if os.getuid() != 0:
        pytest.skip("a container's own user needs root here")
    folder = tmp_path_factory.mktemp("image")
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "tools.image", "--output", str(folder)]
    subprocess.run(command, cwd=REPOSITORY_ROOT, check=True)
    [entry] = json.loads((folder / "image" / "index.json").read_text())["manifests"]
    tag = entry["annotations"]["org.opencontainers.image.ref.name"]
    subprocess.run(
        ["umoci", "unpack", "--image", f"{folder}/image:{tag}", str(folder / "bundle")], check=True
    )
    shutil.rmtree(folder / "image")
    config = json.loads((folder / "bundle" / "config.json").read_text())
    return Image(folder / "bundle" / "rootfs", config["process"])


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    (tmp_path / "roots").mkdir()
    try:
        with Pod(tmp_path / "roots") as ready:
            yield ready
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def container(image: Image, tmp_path: Path) -> Container:
    """Return the server of the compose file, with the user of the image."""
    user = image.process["user"]["uid"]
    recipe = tiny_recipe(RECIPE)
    write_package(
        BuiltPair(recipe, *build_tiny_pair(tmp_path / "engines", num_threads=1)),
        tmp_path / "packages" / RECIPE,
    )
    directory = render_deployment(recipe, tmp_path / "run")
    service = compose(directory)["services"]["server"]
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, user, user)
    sources = {"/packages": tmp_path / "packages", "/etc/draftproof/settings": directory}
    mounts = [
        Mount(sources.get(each["target"], volume), each["target"], each.get("read_only", False))
        for each in service["volumes"]
        if each["target"] != "/etc/draftproof/keys"  # of the machine
    ]
    assert [mount.target for mount in mounts if mount.source == volume] == [
        f"{image.process['cwd']}/.run/{RECIPE}"
    ]
    assert service["working_dir"] == image.process["cwd"] and service["read_only"]
    environment = dict(word.split("=", 1) for word in image.process["env"])
    return Container(
        service["command"],
        service["working_dir"],
        mounts,
        service["tmpfs"],
        {**environment, **service["environment"]},
        image.root,
        user,
    )


def test_the_image_serves_a_package_and_drains(
    pod: Pod, container: Container, server: Server, tmp_path: Path
) -> None:
    """The answers are those of the session's server, which has the same weights and runs outside."""
    log = tmp_path / "server.log"
    python = container.command[0]
    running = pod.start(container, log)

    def inside(program: str, *arguments: str) -> str:
        said = tmp_path / "said"
        said.write_text("")
        box = replace(container, command=[python, "-c", program, *arguments])
        box = replace(box, environment={**container.environment, "RUN": container.command[4]})
        return said.read_text() if pod.start(box, said).wait(300) == 0 else ""

    for _ in range(120):
        answered = inside(ASK, str(MAX_TOKENS), *PROMPTS)
        if answered:
            break
        assert running.poll() is None, log.read_text()[-3000:]
        time.sleep(2)
    with grpc_client(server) as client:
        wanted = [
            list(
                client.generate(CompletionRequest(prompt, max_tokens=MAX_TOKENS, temperature=0.0)).output_ids
            )
            for prompt in PROMPTS
        ]
    assert [json.loads(line) for line in answered.splitlines()] == wanted

    about = json.loads(inside(ABOUT))
    assert about["user"] == [10001, 10001, []]
    assert set(about["capabilities"].values()) == {0}
    assert about["writable"] == ["/tmp", container.command[4]]
    assert about["sbom"] == "CycloneDX"

    os.kill(first_process(running), signal.SIGTERM)
    assert running.wait(120) == 0, log.read_text()[-3000:]
