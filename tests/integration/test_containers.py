"""Tests of the commands of compose files and manifests in containers made of namespaces: a pair is promoted.

Docker, Kubernetes, its network policies and its users are missing. Read-only roots, mounts, dropped
capabilities, ports and networks are real: a job's pod reaches the server's pod over a virtual cable, by the
name of its Service.
"""

from __future__ import annotations

import re
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
from build.package import PACKAGES
from build.recipe import load_recipe
from build.rendering.image import CODE
from pipelines.canary.controller.state import Store
from pipelines.canary.run_files import arms_file, state_file
from pipelines.program import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.router.arms import read_table
from tests.conftest import REPOSITORY_ROOT, tracked_files
from tests.support.deployment_files import compose, container, manifest, manifests, pod_templates, proxy
from tests.support.namespaces import Container, Mount, Pod

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
NUM_LINES = 40  # of a failed container's log


@dataclass(frozen=True)
class Boxes:
    """The containers that a manifest starts.

    Attributes:
        server: The server.
        haproxy: What the server's clients reach.
        canary: A rollout of ``CANDIDATE``.
        canary_pod: The pod in which it runs.
        run: The run directory of both, as seen from outside.
    """

    server: Container
    haproxy: Container
    canary: Container
    canary_pod: Pod
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


@pytest.fixture(scope="module")
def other_pod(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """Return a pod with a network of its own that can reach the first pod."""
    try:
        with Pod(tmp_path_factory.mktemp("pod"), pod) as ready:
            yield ready
    except OSError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Built:
    """The products of a machine with a checkout.

    Attributes:
        image: The code as the image has it, to be mounted at ``CODE``.
        checkout: A copy of the checkout.
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
    dockerfile = (REPOSITORY_ROOT / "pipelines" / "deploy" / "Dockerfile").read_text()
    copied = tuple(re.findall(rf"^COPY (\S+) {CODE}/", dockerfile, re.MULTILINE))
    assert len(copied) == 4
    for name in tracked_files():
        roots = [made.checkout] * (not name.startswith(("tests/", "docs/")))
        for root in (*roots, *[made.image] * name.startswith(copied)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY_ROOT / name, root / name)
    (made.image / ".run" / "box").mkdir(parents=True)  # runtimes create what is mounted inside an image
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


def of_compose(built: Built, folder: Path, request: pytest.FixtureRequest) -> Boxes:
    """Return the compose file's services."""
    directory = deployment(built, folder)
    services = compose(directory)["services"]
    places = {str(PACKAGES): built.packages, ".": directory}
    run = directory.parent / "container" / "box"

    def box(service: Mapping[str, Any], command: list[str]) -> Container:
        mounts = [built.code]
        for each in service["volumes"]:
            if each["source"] == "/etc/draftproof/keys":
                continue  # API keys of the machine
            source = run if each["source"] == str(run) else places[each["source"]]
            mounts.append(Mount(source, elsewhere(each["target"]), each.get("read_only", False)))
        command = [elsewhere(word) for word in command]
        return Container(command, service["working_dir"], mounts, service["tmpfs"], service["environment"])

    canary = [*services["canary"]["entrypoint"], "--candidate", f"/packages/{CANDIDATE['name']}"]
    return Boxes(
        box(services["server"], services["server"]["command"]),
        haproxy(services["haproxy"]["entrypoint"], directory),
        box(services["canary"], [*canary, "--plan", f"/packages/{PLAN}"]),
        request.getfixturevalue("pod"),
        run,
    )


def of_kubernetes(built: Built, folder: Path, request: pytest.FixtureRequest) -> Boxes:
    """Return the containers of the deployment and of the job; claims and the ConfigMap are folders."""
    pod, other_pod = request.getfixturevalue("pod"), request.getfixturevalue("other_pod")
    directory = deployment(built, folder)
    claims = {"draftproof-box-packages": built.packages, "draftproof-box-run": folder / "claim"}
    claims["draftproof-box-run"].mkdir()
    settings = folder / "settings"
    settings.mkdir()
    for file, text in manifest(directory, "ConfigMap")["data"].items():
        (settings / file).write_text(text)
    hosts = folder / "hosts"
    services = [each["metadata"]["name"] for each in manifests(directory) if each["kind"] == "Service"]
    assert sorted(services) == ["draftproof-box", "draftproof-box-control"]
    hosts.write_text(f"127.0.0.1 localhost\n{pod.address} draftproof-box-control\n")

    def box(spec: Mapping[str, Any], one: Mapping[str, Any], command: list[str]) -> Container:
        volumes = {
            each["name"]: claims[each["persistentVolumeClaim"]["claimName"]]
            for each in spec["volumes"]
            if "persistentVolumeClaim" in each
        }
        volumes["settings"] = settings
        mounts = [
            Mount(volumes[each["name"]], elsewhere(each["mountPath"]), each.get("readOnly", False))
            for each in one["volumeMounts"]
            if each["name"] in volumes
        ]
        mounts += [built.code, Mount(hosts, "/etc/hosts", is_read_only=True)]
        empty = [elsewhere(each["mountPath"]) for each in one["volumeMounts"] if each["name"] not in volumes]
        return Container([elsewhere(word) for word in command], one["workingDir"], mounts, empty)

    served = pod_templates(directory)["server"]
    job = yaml.safe_load((directory / "rollouts" / "canary-job.yaml").read_text())["spec"]["template"]
    command = [word.replace("CANDIDATE", str(CANDIDATE["name"])) for word in container(job)["command"]]
    return Boxes(
        box(served["spec"], container(served), container(served)["command"]),
        haproxy(proxy(served)["command"], directory),
        box(job["spec"], container(job), [*command, "--plan", f"/packages/{PLAN}"]),
        other_pod,
        claims["draftproof-box-run"],
    )


def haproxy(command: list[str], directory: Path) -> Container:
    """Return HAProxy with the rendered file."""
    mount = Mount(directory / "haproxy.cfg", elsewhere("/etc/draftproof/haproxy.cfg"), is_read_only=True)
    return Container([elsewhere(word) for word in command], "/", [mount], ["/certs"])


def elsewhere(path: str) -> str:
    """Return another place for a file of /etc, which is the machine's own here."""
    return path.replace("/etc/draftproof/", "/opt/draftproof/")


def deployment(built: Built, folder: Path) -> Path:
    recipe = load_recipe(str(built.checkout / "build" / "recipes" / "box.yaml"))
    return render_deployment(recipe, folder / "run")


@pytest.fixture(params=[pytest.param(of_kubernetes, marks=pytest.mark.long), of_compose])
def boxes(request: pytest.FixtureRequest, built: Built, tmp_path: Path) -> Boxes:
    make: Callable[[Built, Path, pytest.FixtureRequest], Boxes] = request.param
    return make(built, tmp_path, request)


ASK = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1], timeout=120).read().decode())
"""


@pytest.mark.long
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
    before = {path.name for path in (boxes.run / "model_repository").iterdir()}
    rendered = [path for path in boxes.run.rglob("config.pbtxt") if str(REPOSITORY_ROOT) in path.read_text()]
    assert rendered == []

    controller = boxes.canary_pod.start(boxes.canary, controller_log)
    wait_for(lambda: phase() == "shadow", controller, controller_log)
    assert is_ready()
    controller.terminate()  # its node is drained
    finished(controller, controller_log, EXIT_INTERRUPTED)

    controller = boxes.canary_pod.start(boxes.canary, controller_log)
    code, text = inside("-m", "pipelines.canary", "promote", "--recipe", "box")
    assert code == 0, text
    finished(controller, controller_log, EXIT_PASS, EXIT_INCONCLUSIVE)  # promoted by hand, not by the verdict
    assert phase() == "promoted"
    [loop] = {path.name for path in (boxes.run / "model_repository").iterdir()} - before

    server.terminate()
    server.wait(120)
    server = pod.start(boxes.server, log)
    wait_for(is_ready, server, log)
    table = read_table(arms_file(boxes.run))
    assert loop in table.stable.socket
    assert inside("-c", ASK, f"8000/v2/models/{loop}/ready")[0] == 0
    generation = f'draftproof_router_generation{{model="router"}} {table.generation}'
    wait_for(lambda: generation in inside("-c", ASK, "8002/metrics")[1], server, log)
    server.terminate()
    server.wait(120)


CLIENT = """
import sys, urllib.error, urllib.request
def status(url, key, data=None):
    try:
        asked = urllib.request.Request(url, data, {"draftproof-key": key})
        return urllib.request.urlopen(asked, timeout=120).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
key = open(sys.argv[2] + "/key").read().strip()
for port in (8100, 8000):
    base = f"http://{sys.argv[1]}:{port}/v2/"
    ready = status(base + "models/router/ready", "")
    print(ready, *(status(base + "repository/index", shown, b"{}") for shown in ("", key)))
"""


@pytest.mark.skipif(
    shutil.which("haproxy", path="/usr/sbin:/usr/bin") is None, reason="haproxy is not installed"
)
def test_the_key_opens_the_gateway_and_not_haproxy(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    """A job's pod, where a rollout runs, reaches the gateway; compose keeps the gateway on the loopback."""
    running = [pod.start(box, tmp_path / "served.log") for box in (boxes.server, boxes.haproxy)]
    is_elsewhere = boxes.canary_pod is not pod
    address = pod.address if is_elsewhere else "127.0.0.1"
    run = f"{CODE}/.run/box"
    for attempt in range(120):
        said = tmp_path / f"said{attempt}"
        client = replace(boxes.canary, command=[PYTHON, "-c", CLIENT, address, run])
        boxes.canary_pod.start(client, said).wait(120)
        if said.read_text().startswith("200"):
            break
        assert running[0].poll() is None, last_lines(tmp_path / "served.log")
        time.sleep(0.5)
    assert said.read_text() == "200 404 404\n200 403 200\n"
    for process in running:
        process.terminate()
        process.wait(120)


def test_a_container_writes_only_where_it_may(pod: Pod, boxes: Boxes, tmp_path: Path) -> None:
    """Negative control of the test above."""
    for box in (boxes.server, boxes.canary):
        for path, is_allowed in (
            (Path(CODE) / ".run" / "box", True),
            (Path(CODE) / ".run", False),
            (Path(CODE) / "build", False),
            (Path("/packages") / "box", False),
            (Path("/opt"), False),
            (Path("/tmp"), True),
        ):
            touch = replace(box, command=["touch", str(path / "written")])
            code = pod.start(touch, tmp_path / "touch.log").wait(120)
            assert (code == 0) == is_allowed, path
