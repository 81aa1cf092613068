"""Tests of the commands of the manifests in containers made of namespaces: a pair is promoted.

Docker, Kubernetes, its network policies and its users are missing. Read-only roots, mounts, dropped
capabilities and ports are real.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.package import PACKAGES
from pipelines.canary.controller.own_servers import served_pair
from pipelines.canary.controller.state import Store
from pipelines.canary.run_files import state_file
from pipelines.deploy.server import beside
from pipelines.program import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS
from tests.conftest import REPOSITORY_ROOT, tracked_files
from tests.support.deployment_files import (
    CODE,
    DEPLOY,
    PYTHON,
    RUN,
    Document,
    box,
    command,
    documents,
    one,
)
from tests.support.deployment_files import pod as pod_of
from tests.support.namespaces import Container, Mount, Pod
from tools.wheel.__main__ import SERVED

pytestmark = [pytest.mark.triton, pytest.mark.slow, pytest.mark.long]

PAIR = "engines/demo_pair"
RECIPE: dict[str, Any] = {
    "name": "box",
    "runtime": "embedded",
    **{
        role: {
            "checkpoint": f"{PAIR}/{role}",
            "quantization": "int8",
            "num_threads": 1,
            "kv_cache": {"num_blocks": 64},
        }
        for role in ("draft", "target")
    },
    "serving": {"max_batch_size": 2, "max_num_tokens": 64, "max_seq_len": 256, "max_draft_len": 4},
}
CANDIDATE = {**RECIPE, "name": "box-new", "serving": {**RECIPE["serving"], "max_queue_size": 9}}
PLAN = "quick.yaml"
QUICK = {"watch_s": 2, "tick_s": 0.5, "lease_s": 5}
NUM_LINES = 40  # of a failed container's log


@dataclass(frozen=True)
class Boxes:
    """The container of the server, as its manifest starts it.

    Attributes:
        run: The server's run directory, as seen from outside.
    """

    server: Container
    run: Path


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    scratch = tmp_path_factory.mktemp("pod")
    try:
        with Pod(scratch) as ready:
            probe = Container(["true"], "/", [])
            if ready.start(probe, scratch / "probe.log").wait(120):
                pytest.skip(f"no containers of namespaces here: {(scratch / 'probe.log').read_text()}")
            yield ready
    except OSError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Built:
    """The products of a machine with a checkout.

    ``image``: the code as the image has it, to be mounted at ``CODE``.
    """

    image: Path
    checkout: Path

    @property
    def packages(self) -> Path:
        """Return the folder of the packages of both pairs, with a plan for their rollout."""
        return self.checkout / PACKAGES.relative_to(REPOSITORY_ROOT)

    @property
    def code(self) -> Mount:
        """Return the mount that stands in for the image."""
        return Mount(self.image, CODE, is_read_only=True)


@pytest.fixture(scope="module")
def built(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the packages of both recipes and the code; no container sees the checkout."""
    made = Built(tmp_path_factory.mktemp("image"), tmp_path_factory.mktemp("checkout"))
    copied = tuple(f"{name}/" for name in SERVED)
    for name in tracked_files():
        roots = [made.checkout] * (not name.startswith(("tests/", "docs/", "deploy/")))
        for root in (*roots, *[made.image] * name.startswith(copied)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY_ROOT / name, root / name)
    (made.image / ".run" / "server").mkdir(parents=True)
    for recipe in (RECIPE, CANDIDATE):
        path = made.checkout / "build" / "recipes" / f"{recipe['name']}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        command = [PYTHON, "-m", "build.package", "--recipe", str(recipe["name"])]
        builder = Container(
            command, str(REPOSITORY_ROOT), [Mount(made.checkout, str(REPOSITORY_ROOT))], ["/tmp"]
        )
        log = made.checkout / "build.log"
        finished(pod.start(builder, log), log)
    plan = yaml.safe_load((made.image / "pipelines" / "canary" / "controller" / "canary.yaml").read_text())
    (made.packages / PLAN).write_text(yaml.safe_dump({**plan, **QUICK}))
    return made


def finished(process: subprocess.Popen[str], log: Path, *codes: int) -> None:
    assert process.wait(300) in (codes or (0,)), last_lines(log)


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-NUM_LINES:])


@pytest.fixture
def boxes(built: Built, tmp_path: Path) -> Boxes:
    """Return the container of the deployment; claims and the ConfigMap are folders."""
    served = pod_of(one(documents(DEPLOY / "server" / "server.yaml"), "Deployment"))
    sources = {"packages": built.packages, "run": tmp_path / "claim", "settings": DEPLOY / "server"}
    sources["run"].mkdir()

    def started_as(one_box: Document, **changed: str) -> Container:
        for each in one_box["env"]:
            each["value"] = changed.get(each["name"], each["value"])
        words = [elsewhere(word) for word in command(one_box)]
        mounts = [
            Mount(sources[each["name"]], elsewhere(each["mountPath"]), each.get("readOnly", False))
            for each in one_box["volumeMounts"]
            if each["name"] in sources
        ]
        mounts.append(built.code)
        empty = [
            elsewhere(each["mountPath"]) for each in one_box["volumeMounts"] if each["name"] not in sources
        ]
        return Container(words, one_box["workingDir"], mounts, empty)

    return Boxes(started_as(box(served, "server"), PACKAGE="box"), sources["run"])


def elsewhere(path: str) -> str:
    """Return another place for a file of /etc, which is the machine's own here."""
    return path.replace("/etc/draftproof/", "/opt/draftproof/")


ASK = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1], timeout=120).read().decode())
"""

SERVED_NAME = f"""
from pathlib import Path
from pipelines.deploy.served_files import ServedFiles
print(ServedFiles.read(Path({RUN!r})).name)
"""


def test_a_pair_is_promoted_in_containers_and_outlives_them(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    log, controller_log, said = (tmp_path / f"{name}.log" for name in ("server", "controller", "said"))

    def inside(*command: str) -> tuple[int, str]:
        """Run a command as ``docker compose exec server`` and ``kubectl exec`` do."""
        said.write_text("")
        return pod.start(replace(boxes.server, command=[PYTHON, *command]), said).wait(120), said.read_text()

    def wait_for(what: Callable[[], bool], process: subprocess.Popen[str], its_log: Path) -> None:
        for _ in range(240):
            if what():
                return
            assert process.poll() is None, last_lines(its_log)
            time.sleep(0.5)
        raise AssertionError(last_lines(its_log))

    def is_ready() -> bool:
        return inside("-c", ASK, "8000/v2/models/router/ready")[0] == 0

    def phase() -> str:
        state = state_file(boxes.run)
        if not state.exists():
            return ""
        store = Store.existing(state)
        rollout = store.latest()
        return "" if rollout is None else store.progress(rollout).position.phase

    server = pod.start(boxes.server, log)
    wait_for(is_ready, server, log)
    rendered = [path for path in boxes.run.rglob("config.pbtxt") if str(REPOSITORY_ROOT) in path.read_text()]
    assert rendered == []

    start = ["-m", "pipelines.canary", "start", "--recipe", "server", "--plan", f"/packages/{PLAN}"]
    start += ["--candidate", f"/packages/{CANDIDATE['name']}"]
    rollout = replace(boxes.server, command=[PYTHON, *start])
    controller = pod.start(rollout, controller_log)
    wait_for(lambda: phase() == "shadow", controller, controller_log)
    assert is_ready()
    controller.terminate()  # the terminal was closed
    finished(controller, controller_log, EXIT_INTERRUPTED)

    controller = pod.start(rollout, controller_log)
    code, text = inside("-m", "pipelines.canary", "promote", "--recipe", "server")
    assert code == 0, text
    finished(controller, controller_log, EXIT_PASS, EXIT_INCONCLUSIVE)  # promoted by hand, not by the verdict
    assert phase() == "promoted"
    assert not beside(boxes.run).exists()

    server.terminate()
    server.wait(120)
    server = pod.start(boxes.server, log)
    wait_for(is_ready, server, log)
    assert served_pair(boxes.run).name == CANDIDATE["name"]
    assert inside("-c", SERVED_NAME) == (0, f"{RECIPE['name']}\n")
    server.terminate()
    server.wait(120)


def test_a_container_writes_only_where_it_may(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    """Negative control of the test above."""
    for path, is_allowed in (
        (Path(RUN), True),
        (Path(CODE) / ".run", False),
        (Path(CODE) / "build", False),
        (Path("/packages") / "box", False),
        (Path("/opt"), False),
        (Path("/tmp"), True),
    ):
        touch = replace(boxes.server, command=["touch", str(path / "written")])
        code = pod.start(touch, tmp_path / "touch.log").wait(120)
        assert (code == 0) == is_allowed, path
