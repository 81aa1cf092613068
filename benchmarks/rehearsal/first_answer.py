"""Run ``draftproof try`` on two directories up to the first verified answers, and time its progress."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.server_memory import ProcessMemory, process_memory
from build.recipe import REPOSITORY_ROOT
from pipelines.errors import EngineFailedError

STAGES = (
    ("checks", re.compile("")),
    ("draft", re.compile(r" *draft: building")),
    ("target", re.compile(r" *target: building")),
    ("calibration", re.compile(r" *target: [\d.]+ M parameters")),
    ("start", re.compile(r"2\. Triton")),
    ("answers", re.compile(r" *ready after")),
)
"""Names of stages, and the line of the program with which each begins."""

_EQUAL = re.compile(r".*-- .*, equal$")
_DIFFERENT = re.compile(r".*-- .*, DIFFERENT$")
_SAMPLE_S = 0.5


@dataclass
class Stage:
    """A stage of the program.

    Attributes:
        name: One of ``STAGES``.
        began_s: When it began, on the clock of ``time.monotonic``.
        seconds: Its duration.
        peak_mb: Most memory that no file holds, in all its processes together.
    """

    name: str
    began_s: float
    seconds: float = 0.0
    peak_mb: float = 0.0


def anonymous_mb(pid: int) -> float:
    """Return the memory of a process tree that no file holds, so without mapped checkpoints."""
    total_kb = 0
    for each in _tree(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_kb += sum(int(size) for size in re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB$", status, re.M))
    return total_kb * 1024 / 1e6


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text("ascii").split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield from _tree(int(child))


def try_pair(arguments: list[str], num_answers: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Run ``draftproof try`` and end it after some verified answers.

    Args:
        arguments: Its arguments.
        num_answers: Verified answers to wait for.
        report: Called with each line of the program.

    Returns:
        ``stages``, ``first_verified_s``, and the memory of the server's processes after the last answer.

    Raises:
        EngineFailedError: The program ended before, or an answer differed.
    """
    command = [sys.executable, "-u", "-m", "pipelines.demo.own_pair", *arguments]
    began_s = time.monotonic()
    stages = [Stage("checks", began_s)]
    first_s, num_equal, processes = None, 0, list[ProcessMemory]()
    with subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as program:
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(_SAMPLE_S):
                stages[-1].peak_mb = max(stages[-1].peak_mb, anonymous_mb(program.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            assert program.stdout is not None
            for line in program.stdout:
                now_s = time.monotonic()
                report(f"{now_s - began_s:7.1f} s  {line.rstrip()}")
                known = [stage.name for stage in stages]
                for name, pattern in STAGES:
                    if name not in known and pattern.match(line):
                        stages.append(Stage(name, now_s))
                if _DIFFERENT.match(line):
                    break
                if not _EQUAL.match(line):
                    continue
                first_s = first_s or now_s - began_s
                num_equal += 1
                if num_equal == num_answers:
                    processes = [each for each in process_memory(program.pid)][1:]
                    break
        finally:
            ended.set()
            sampler.join()
            program.send_signal(signal.SIGTERM)
            for _ in program.stdout or ():
                """Read what it still prints, so that it can end."""
    ends_s = [*(stage.began_s for stage in stages[1:]), time.monotonic()]
    for stage, end_s in zip(stages, ends_s, strict=True):
        stage.seconds = end_s - stage.began_s
    if first_s is None or num_equal < num_answers:
        raise EngineFailedError(
            "the pair has not answered as the target alone",
            values=f"{num_equal} of {num_answers} answers equal; last stage {stages[-1].name}",
            limit="every answer is equal",
            remedy="read the program's output above",
        )
    return {
        "stages": [{"name": each.name, "seconds": each.seconds, "peak_mb": each.peak_mb} for each in stages],
        "first_verified_s": first_s,
        "num_verified": num_equal,
        "server_rss_mb": sum(process.rss for process in processes),
        "server_pss_mb": sum(process.pss for process in processes),
        "processes": [asdict(process) for process in processes if process.rss > 200],
    }
