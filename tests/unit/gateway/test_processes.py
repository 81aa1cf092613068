"""Tests of Triton's and its models' processes: found, output passed on, ended with their children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.deploy.triton.command import ServerCommand
from pipelines.deploy.triton.place import TritonPlace
from pipelines.process import ProcessIdentity
from pipelines.triton.supervision import triton_process
from pipelines.triton.supervision.guard import find_model_processes, kill_processes, start_guard
from pipelines.triton.supervision.triton_process import TritonProcess

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TritonPlace]:
    place = TritonPlace.make(tmp_path)
    yield place
    kill_processes(place.shared_memory_prefix)
    place.clear()


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def started(place: TritonPlace) -> subprocess.Popen[bytes]:
    """Start a process that looks like this Triton's by its command line."""
    return subprocess.Popen(python(SLEEP, f"--region={place.shared_memory_prefix}0_x"))


def until(is_so: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_model_s_process_is_known_by_its_command_line(place: TritonPlace, tmp_path: Path) -> None:
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    model = tmp_path / "model_repository" / "generate" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(SLEEP)
    other_place = TritonPlace.make(tmp_path)
    children = [
        subprocess.Popen([str(stub), str(model), f"{each.shared_memory_prefix}0_region", "67108864"])
        for each in (place, other_place)
    ]
    try:
        triton = started(place)
        children.append(triton)
        until(lambda: len(find_model_processes(place.shared_memory_prefix)) == 1)
        found = find_model_processes(place.shared_memory_prefix)["generate"]
        assert found.pid == children[0].pid
        assert found.is_alive
        found.kill()
        assert children[0].wait(120) == -9
        assert not found.is_alive
        found.kill()  # no other process, if the id is reused
        assert find_model_processes(place.shared_memory_prefix) == {}
        ended = kill_processes(place.shared_memory_prefix)
        assert [each.pid for each in ended] == [triton.pid]
        assert triton.wait(120) == -9
        assert children[1].poll() is None, "of another Triton"
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_the_guard_ends_what_a_gateway_leaves_behind(place: TritonPlace, how: str) -> None:
    left = started(place)
    region = Path("/dev/shm") / f"{place.shared_memory_prefix}0_region"
    region.touch()
    prefix = place.shared_memory_prefix
    if how == "closed":
        guard = start_guard(prefix)
        time.sleep(0.5)
        assert left.poll() is None and region.exists() and guard.poll() is None, "it waits for the end"
        guard.communicate(timeout=120)
    else:
        program = (
            "import sys, time; from pipelines.triton.supervision.guard import start_guard; "
            "start_guard(sys.argv[1][::-1]); print('started', flush=True); time.sleep(60)"
        )
        gateway = subprocess.Popen(
            python(program, prefix[::-1]), stdout=subprocess.PIPE, start_new_session=True
        )
        assert gateway.stdout is not None and gateway.stdout.readline() == b"started\n"
        os.killpg(gateway.pid, signal.SIGKILL)  # with its whole group, as someone who stops it in vain does
        gateway.communicate()
    assert left.wait(120) == -9
    until(lambda: not region.exists())


def run(place: TritonPlace, program: str, *arguments: str) -> TritonProcess:
    return TritonProcess(ServerCommand(python(program, *arguments), dict(os.environ)), place)


async def test_it_is_seen_as_ended_though_a_grandchild_holds_its_output(
    place: TritonPlace, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A model's process outlives a killed Triton and has its standard output."""
    program = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}, sys.argv[1]]); "
        "print(child.pid, flush=True); sys.exit(3)"
    )
    process = run(place, program, place.shared_memory_prefix)
    assert await asyncio.wait_for(process.ended, 20) == 3
    assert process.has_ended and not process.met_its_race
    while not (printed := capfdbinary.readouterr().out):
        await asyncio.sleep(0.01)
    grandchild = ProcessIdentity.of(int(printed))
    assert grandchild is not None
    await process.clear()
    assert not grandchild.is_alive


@pytest.mark.parametrize("end", ["", "\\n", "\\nand more\\n"])
async def test_its_race_at_the_start_is_recognised_in_what_it_prints(place: TritonPlace, end: str) -> None:
    said = "terminate called after throwing an instance of boost::interprocess::lock_exception"
    program = f"import sys; print('x' * 100_000); sys.stderr.write('{said}{end}'); sys.exit(1)"
    process = run(place, program)
    await asyncio.wait_for(process.ended, 20)
    await process.clear()
    assert process.met_its_race
    other = run(place, "print('boost'); raise SystemExit(1)")
    await other.ended
    await other.clear()
    assert not other.met_its_race


async def test_a_model_that_has_loaded_and_is_not_taken_was_given_up(
    place: TritonPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_process, "_TAKEN_WITHIN_S", 0.5)
    loaded, taken = "model {} has loaded", "successfully loaded '{}'"
    lines = (
        loaded.format("b"),
        loaded.format("a"),
        taken.format("b") + loaded.format("c"),
        taken.format("a"),
    )
    said = "\n".join(lines)
    process = run(place, f"import time; print({said!r}, flush=True); time.sleep(60)")
    found: list[str] = []
    while not found:
        assert not (process.met_its_race or process.has_ended)
        await asyncio.sleep(0.05)
        found = process.given_up()
    assert (found, process.given_up(), process.met_its_race) == (["c"], [], True)
    await process.clear()


async def test_what_it_prints_is_passed_on_whole(
    place: TritonPlace, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    process = run(place, "import sys; sys.stdout.write('a\\n' * 200_000 + 'no end of line')")
    await asyncio.wait_for(process.ended, 30)
    await process.clear()
    assert capfdbinary.readouterr().out == b"a\n" * 200_000 + b"no end of line"


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_it_is_asked_to_end_and_killed_if_it_does_not(
    place: TritonPlace, is_deaf: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if is_deaf else ""
    program = f"import signal, time; {ignore}print('ready', flush=True); time.sleep(60)"
    process = run(place, program)
    while not capfdbinary.readouterr().out:
        await asyncio.sleep(0.01)
    await process.stop(1.0 if is_deaf else 20.0)
    assert process.ended.result() == (-9 if is_deaf else -15)


FORKS = """
import os, signal, subprocess, sys, time
def fork():
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(60)
    return child
def end(*_):
    print("asked", sys.argv[1], flush=True)
    os._exit(0)
def server():
    signal.signal(signal.SIGTERM, end)
    fork()
    print("ready", flush=True)
    time.sleep(60)
def mpirun():
    fork()
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[-1], "server", *sys.argv[2:]]).returncode)
globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize("name", ["mpirun", "server"])
async def test_the_server_is_asked_to_end_though_children_have_its_command_line(
    place: TritonPlace, name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Start a child as it is between fork and exec: a model's process, or an engine's rank."""
    program = tmp_path / name
    program.symlink_to(sys.executable)
    words = ("--allow-http=false", f"--region={place.shared_memory_prefix}", FORKS)
    command = [str(program), "-c", FORKS, name, *words]
    process = TritonProcess(ServerCommand(command, dict(os.environ)), place)
    while not capfdbinary.readouterr().out:
        await asyncio.sleep(0.01)
    await process.stop(5.0)
    assert (process.ended.result(), capfdbinary.readouterr().out) == (0, b"asked server\n")


async def test_a_process_that_ended_leaves_no_open_file(place: TritonPlace) -> None:
    """Each restart of Triton would leave one, and there are only 1,024."""

    async def once() -> int:
        process = run(place, "")
        await process.ended
        await process.clear()
        await process.clear()  # by the tasks that meet at its end
        return len(list(Path("/proc/self/fd").iterdir()))

    first = await once()
    assert [await once() for _ in range(3)] == [first] * 3
