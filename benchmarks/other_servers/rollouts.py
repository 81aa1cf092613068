"""Roll servers of vLLM out against each other: ``python -m benchmarks.other_servers.rollouts --output FILE``.

The demonstration pair's target is served twice by vLLM on this machine. The candidate is once the same
checkpoint in another server, and once its weights rounded to INT8. Clients stream without a pause.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.other_servers.checkpoints import folder_for
from benchmarks.other_servers.engines import PAIR, VLLM, model_of, serving, version
from benchmarks.peers.environment import ensure_environment
from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.state import Store
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.canary.run_files import state_file
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.deploy.server import RUN
from pipelines.errors import CanaryError, PeerError
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

_BROKEN = 0
_MAX_TOKENS = 24
_NUM_CLIENTS = 3
_ENDS_WITHIN_S = 600.0
_FIRST_PORT = 9401
_CANDIDATES = (
    ("the same checkpoint", "none", "promoted"),
    ("its weights rounded to INT8", "int8", "rolled_back"),
)
_TIMES = {"pass_below": 0.5, "rollback_above": 0.5}  # other programs use this machine as well


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_servers.rollouts", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments

    def work() -> int:
        python = ensure_environment(VLLM.name, needs_torch=VLLM.needs_torch)
        folder = folder_for(PAIR, RUN / "upstream-rollouts")
        about = conditions("benchmarks.other_servers.rollouts", given)
        with stopped_by_signals():
            found = _roll_all_out(python, folder)
        about["vllm"] = version(VLLM, python)
        write_whole(options.output, json.dumps({"rollouts": found, "conditions": about}, indent=1) + "\n")
        return EXIT_PASS

    return run_program(work)


def _roll_all_out(python: Path, folder: Path) -> list[dict[str, Any]]:
    """Start all servers together, and roll one candidate out after the other."""
    weights = ("none", *(each[1] for each in _CANDIDATES))
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(VLLM, python, folder, _FIRST_PORT + number, speculative=False, target=each)
            )
            for number, each in enumerate(weights)
        ]
        old, *others = [each.wait() for each in servers]
        return [
            _roll_out(folder, old, new, *candidate)
            for new, candidate in zip(others, _CANDIDATES, strict=True)
        ]


def _roll_out(
    folder: Path, old: str, new: str, name: str, quantization: str, expected: str
) -> dict[str, Any]:
    """Roll one candidate out, and return what happened."""
    began_s = time.monotonic()
    service = f"upstream-rollouts-{quantization}-{int(time.time())}"
    settings = _write_settings(folder, service, old, new)
    with _service(settings) as url, _clients(url) as statuses:
        record = _ended(state_file(RUN / service))
    judged = judgement(record)
    decided = [each for each in record.transitions if each.to_phase in ("promoting", "rolling_back")]
    replays = [each for each in record.requests if each.is_replay and each.answer]
    differing = Counter(each.arm for each in replays if each.answer != "equal")
    compared = Counter(each.arm for each in replays)
    return {
        "candidate": name,
        "expected": expected,
        "ended": record.phase,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "decided_in": decided[0].from_phase if decided else record.phase,
        "num_requests": sum(not each.is_replay for each in record.requests),
        "by_arm": Counter(each.arm for each in record.requests if not each.is_replay),
        "compared": compared,
        "differing": {arm: differing[arm] for arm in compared},
        "statuses": {str(status): number for status, number in Counter(statuses).items()},
        "seconds": round(time.monotonic() - began_s),
        "phases": [each.to_phase for each in record.transitions],
    }


def _write_settings(folder: Path, service: str, old: str, new: str) -> Path:
    """Write settings, the default plan with shorter phases, and the default limits with wider times."""
    defaults = Path("pipelines/upstreams")
    plan = yaml.safe_load((defaults / "plan.yaml").read_text())
    limits = yaml.safe_load((defaults / "limits.yaml").read_text())
    plan["shadow"].update(share=1.0, max_per_s=20, bake_s=20)
    plan["steps"] = [
        {"weight": 0.2, "min_pairs": 30, "bake_s": 20},
        {"weight": 0.45, "min_pairs": 60, "bake_s": 20},
    ]
    plan.update(watch_s=5, slo_ttft_s=5.0, slo_itl_s=0.5)
    for name in ("ttft", "itl", "e2e_tail"):
        limits[name] = _TIMES
    limits.update(quantile=0.5, pause_s=5.0)
    limits["answers"] = {"pass_below": 0.1, "rollback_above": 0.02}  # vLLM's own noise is several per cent
    for name in ("errors", "timeouts", "pauses"):
        limits[name] = {"pass_below": 0.03, "rollback_above": 0.01}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    (folder / "limits.yaml").write_text(yaml.safe_dump(limits))
    servers = {"stable": {"name": "old", "url": old}, "candidate": {"name": "new", "url": new}}
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump({"name": service, "plan": "plan.yaml", **servers}))
    return path


@contextlib.contextmanager
def _service(settings: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "pipelines", "upstreams", "--settings", str(settings), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise PeerError("the service does not start", values=line)
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def _clients(url: str) -> Iterator[list[int]]:
    """Ask during the block, each prompt in turn; yields the status of each answer, 0 for a broken one."""
    prompts = [each.text for each in choose_prompts(PAIR / "prompts", "").for_judging().all]
    statuses: list[int] = []
    ending = threading.Event()

    def ask(first: int) -> None:
        for number in itertools.count(first, _NUM_CLIENTS):
            if ending.is_set():
                return
            body = {
                "model": model_of(VLLM, speculative=False),
                "prompt": prompts[number % len(prompts)],
                "temperature": 0,
            }
            body |= {"max_tokens": _MAX_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
            try:
                answer = httpx.post(f"{url}/v1/completions", json=body, timeout=600, trust_env=False)
                statuses.append(answer.status_code)
            except httpx.HTTPError:
                statuses.append(_BROKEN)

    threads = [threading.Thread(target=ask, args=(each,)) for each in range(_NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _ended(state: Path) -> RolloutRecord:
    ends_at_s = time.monotonic() + _ENDS_WITHIN_S
    while time.monotonic() < ends_at_s:
        with contextlib.suppress(CanaryError), contextlib.closing(Store.existing(state)) as store:
            record = store.record()
            if record.phase in ENDED:
                return record
        time.sleep(2.0)
    raise PeerError("a rollout has not ended", values=str(state), limit=f"{_ENDS_WITHIN_S:g} s")


if __name__ == "__main__":
    sys.exit(main())
