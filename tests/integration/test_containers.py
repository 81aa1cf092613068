"""Commands of compose files and manifests, in containers made of namespaces: a pair is promoted, and stays.

Docker, Kubernetes and their users are not there; read-only roots, mounts, lacking capabilities and ports are.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.deployment import PYTHON, render_deployment
from build.recipe import load_recipe
from pipelines.canary.start import state_file
from pipelines.canary.state import Store
from pipelines.canary.triton_world import arms_file
from pipelines.command_line import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.routing.arms import read_table
from tests.conftest import REPOSITORY_ROOT, tracked_files
from tests.deployment_files import compose, container, manifest, pod_templates
from tests.namespaces import Container, Mount, Pod

pytestmark = [pytest.mark.triton, pytest.mark.slow]

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
NUM_LINES = 40  # of a log that is shown


@dataclass(frozen=True)
class Boxes:
    """What a manifest starts.

    Attributes:
        server: The server.
        canary: A rollout of ``CANDIDATE``.
        run: Where the run directory of both lies outside.
    """

    server: Container
    canary: Container
    run: Path


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    scratch = tmp_path_factory.mktemp("pod")
    try:
        with Pod(scratch) as ready:
            probe = Container(["true"], "/", [])
            if ready.start(probe, scratch / "probe.log").wait(30):
                pytest.skip(f"no containers of namespaces here: {(scratch / 'probe.log').read_text()}")
            yield ready
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def checkout(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which both recipes were built: what is mounted at the path of the original."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in tracked_files():
        if not name.startswith(("tests/", "docs/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY_ROOT / name, copy / name)
    for recipe in (RECIPE, CANDIDATE):
        path = copy / "build" / "recipes" / f"{recipe['name']}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        command = [PYTHON, "-m", "build.repository", "--recipe", str(recipe["name"])]
        builder = Container(command, str(REPOSITORY_ROOT), [Mount(copy, str(REPOSITORY_ROOT))], ["/tmp"])
        finished(pod.start(builder, copy / "build.log"), copy / "build.log")
    plan = yaml.safe_load((copy / "pipelines" / "canary" / "canary.yaml").read_text())
    (copy / PLAN).write_text(yaml.safe_dump({**plan, **QUICK}))
    return copy


def finished(process: subprocess.Popen[str], log: Path, *codes: int) -> None:
    assert process.wait(300) in (codes or (0,)), last_lines(log)


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-NUM_LINES:])


def of_compose(checkout: Path, folder: Path) -> Boxes:
    """Services of the compose file; the checkout's own run directory is written."""
    services = compose(deployment(checkout, folder))["services"]

    def box(service: Mapping[str, Any], command: list[str]) -> Container:
        mounts = [
            Mount(
                checkout / Path(each["source"]).relative_to(REPOSITORY_ROOT),
                each["target"],
                each.get("read_only", False),
            )
            for each in service["volumes"]
        ]
        return Container(command, service["working_dir"], mounts, service["tmpfs"], service["environment"])

    canary = [*services["canary"]["entrypoint"], "--candidate", str(CANDIDATE["name"]), "--plan", PLAN]
    return Boxes(
        box(services["server"], services["server"]["command"]),
        box(services["canary"], canary),
        checkout / ".run" / "box",
    )


def of_kubernetes(checkout: Path, folder: Path) -> Boxes:
    """Containers of the deployment and of the job; the claims are folders."""
    directory = deployment(checkout, folder)
    claims = {"draftproof-box": checkout, "draftproof-box-run": folder / "claim"}
    claims["draftproof-box-run"].mkdir()
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {manifest(directory, 'Service')['metadata']['name']}\n")

    def box(spec: Mapping[str, Any], one: Mapping[str, Any], command: list[str]) -> Container:
        volumes = {
            each["name"]: claims[each["persistentVolumeClaim"]["claimName"]]
            for each in spec["volumes"]
            if "persistentVolumeClaim" in each
        }
        mounts = [
            Mount(
                volumes[each["name"]] / each.get("subPath", ""),
                each["mountPath"],
                each.get("readOnly", False),
            )
            for each in one["volumeMounts"]
            if each["name"] in volumes
        ]
        mounts.append(Mount(hosts, "/etc/hosts", is_read_only=True))
        empty = [each["mountPath"] for each in one["volumeMounts"] if each["name"] not in volumes]
        return Container(command, one["workingDir"], mounts, empty)

    served = pod_templates(directory)["server"]
    job = yaml.safe_load((directory / "rollouts" / "canary-job.yaml").read_text())["spec"]["template"]
    command = [word.replace("CANDIDATE", str(CANDIDATE["name"])) for word in container(job)["command"]]
    return Boxes(
        box(served["spec"], container(served), container(served)["command"]),
        box(job["spec"], container(job), [*command, "--plan", PLAN]),
        claims["draftproof-box-run"],
    )


def deployment(checkout: Path, folder: Path) -> Path:
    return render_deployment(load_recipe(str(checkout / "build" / "recipes" / "box.yaml")), folder / "run")


@pytest.fixture(params=[of_kubernetes, of_compose])
def boxes(request: pytest.FixtureRequest, checkout: Path, tmp_path: Path) -> Boxes:
    make: Callable[[Path, Path], Boxes] = request.param
    return make(checkout, tmp_path)


ASK = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1], timeout=5).read().decode())
"""


def test_a_pair_is_promoted_in_containers_and_outlives_them(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    log, controller_log, said = (tmp_path / f"{name}.log" for name in ("server", "controller", "said"))

    def inside(*command: str) -> tuple[int, str]:
        """As ``docker compose exec server`` and ``kubectl exec`` do."""
        said.write_text("")
        return pod.start(replace(boxes.server, command=[PYTHON, *command]), said).wait(60), said.read_text()

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
    before = {path.name for path in (boxes.run / "model_repository").iterdir()}

    controller = pod.start(boxes.canary, controller_log)
    wait_for(lambda: phase() == "shadow", controller, controller_log)
    assert is_ready()
    controller.terminate()  # its node is drained
    finished(controller, controller_log, EXIT_INTERRUPTED)

    controller = pod.start(boxes.canary, controller_log)
    code, text = inside("-m", "pipelines.canary", "promote", "--recipe", "box")
    assert code == 0, text
    finished(controller, controller_log, EXIT_PASS, EXIT_INCONCLUSIVE)  # promoted by hand, not by the verdict
    assert phase() == "promoted"
    [loop] = {path.name for path in (boxes.run / "model_repository").iterdir()} - before

    server.terminate()
    server.wait(60)
    server = pod.start(boxes.server, log)
    wait_for(is_ready, server, log)
    table = read_table(arms_file(boxes.run))
    assert loop in table.stable.socket
    assert inside("-c", ASK, f"8000/v2/models/{loop}/ready")[0] == 0
    generation = f'draftproof_router_generation{{model="router"}} {table.generation}'
    wait_for(lambda: generation in inside("-c", ASK, "8002/metrics")[1], server, log)
    server.terminate()
    server.wait(60)


def test_a_container_writes_only_where_it_may(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    """Or the test above would show nothing."""
    for box in (boxes.server, boxes.canary):
        for path, is_allowed in (
            (REPOSITORY_ROOT / ".run" / "box", True),
            (REPOSITORY_ROOT / ".run", False),
            (REPOSITORY_ROOT / "engines" / "box", False),
            (Path("/opt"), False),
            (Path("/tmp"), True),
        ):
            touch = replace(box, command=["touch", str(path / "written")])
            code = pod.start(touch, tmp_path / "touch.log").wait(30)
            assert (code == 0) == is_allowed, path
