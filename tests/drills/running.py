"""Runs one drill: a server, clients that know every right answer, and a controller that may be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.canary.controller.state import Store
from pipelines.canary.report.record import PROMOTING, RolloutRecord, judgement
from pipelines.canary.run_files import arms_file, state_file
from pipelines.client import Client
from pipelines.deploy.ports import HOST
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.router.arms import read_table
from tests.drills.drill import Drill
from tests.drills.setting import Setting
from tests.drills.traffic import Traffic, traffic
from tests.support.ready_server import ready_server


@dataclass(frozen=True)
class Result:
    """The result of a drill.

    Attributes:
        drill: The drill's name.
        ends_in: The phase in which it should end.
        phase: The phase in which it ended.
        verdict: The rollout's verdict.
        decided_in: The phase in which the decision fell.
        reason: The decision's reason, as a sentence.
        num_requests: Client requests answered between the beginning of the rollout and the decision.
        most_requests: The most that the drill allows.
        num_by_candidate: Those answered by the candidate.
        num_replays: Requests replayed to the candidate until the decision.
        seconds: From the beginning of the rollout to the decision.
        num_kills: How often the controller was killed.
        num_asked: Requests in the whole drill.
        num_fallbacks: Requests that another arm answered than the one they were routed to.
        num_lost: Requests without an answer.
        num_wrong: Answers that differ from the target's own.
        triton_version: The server's version.
        faults: What went wrong; empty if the drill passed.
    """

    drill: str
    ends_in: str
    phase: str
    verdict: str
    decided_in: str
    reason: str
    num_requests: int
    most_requests: int
    num_by_candidate: int
    num_replays: int
    seconds: float
    num_kills: int
    num_asked: int
    num_fallbacks: int
    num_lost: int
    num_wrong: int
    triton_version: str
    faults: tuple[str, ...]


def run_drill(drill: Drill, setting: Setting, folder: Path) -> Result:
    """Run one drill.

    Args:
        drill: The drill to run.
        setting: The pair, plan and requests to run it with.
        folder: An empty folder that gets the run directory; inside the checkout, or with a short path.
    """
    run = setting.render(folder)
    draft, target = setting.candidate_engines(folder, has_other_tokenizer=drill.has_other_tokenizer)
    orders = folder / "orders.json"
    orders.write_text(
        json.dumps(
            {
                "run": str(run),
                "recipe": setting.candidate_recipe(),
                "draft": str(draft),
                "target": str(target),
                "fault": drill.fault,
                "plan": str(setting.write_plan(folder)),
            }
        )
    )
    with ready_server(run) as server:
        url = f"grpc://{HOST}:{server.ports.grpc}"
        with Client.connect(url) as client:
            version = client.server_version()
        with traffic(url, setting.requests) as seen:
            killed = _roll_out(orders, drill.killed_in)
    store = Store.existing(state_file(run))
    record = store.record()
    store.close()
    return _result(drill, record, seen, killed, run, version)


def _roll_out(orders: Path, killed_in: tuple[str, ...]) -> list[str]:
    """Carry out the rollout and return the phases in which the controller was killed."""
    killed: list[str] = []
    command = [sys.executable, "-m", "tests.drills.controller", str(orders)]
    while True:
        with subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as controller:
            assert controller.stdout is not None
            try:
                for line in controller.stdout:
                    phase = line.strip()
                    if phase in killed_in and phase not in killed:
                        killed.append(phase)
                        os.kill(controller.pid, signal.SIGKILL)
                        break
            except BaseException:
                controller.kill()  # otherwise the end of this block waits for the rollout to end
                raise
        if controller.returncode != -signal.SIGKILL:
            return killed


def _result(
    drill: Drill, record: RolloutRecord, seen: Traffic, killed: list[str], run: Path, version: str
) -> Result:
    decision = next(
        each for each in record.transitions if each.to_phase in ("promoting", "rolling_back", "rolled_back")
    )
    until_s = decision.at_s
    num_requests = seen.num_until(until_s) - seen.num_until(record.began_at_s)
    num_replays = sum(each.is_replay for each in record.requests)
    num_fallbacks = sum(bool(each.fallback_from) for each in seen.heard)
    table = read_table(arms_file(run))
    checks = {
        f"it ended in {record.phase}": record.phase == drill.ends_in,
        f"the reason is another: {decision.reason}": bool(re.search(drill.because, decision.reason)),
        f"it took {num_requests} requests": num_requests <= drill.most_requests,
        f"{seen.num_lost} requests were lost": seen.num_lost == 0,
        f"{seen.num_wrong} answers were wrong": seen.num_wrong == 0,
        "the clients asked nothing": seen.num_asked > 0,
        f"the controller was killed in {killed}": set(killed) == set(drill.killed_in),
        "a candidate is still in the table of arms": table.candidate is None,
        f"{table.stable.socket} serves": ("speculative_" in table.stable.socket)
        == (record.phase in PROMOTING),
        "a client was answered by a candidate that should not have been loaded": not (
            drill.has_other_tokenizer and any(each.arm == "candidate" for each in seen.heard)
        ),
    }
    return Result(
        drill=drill.name,
        ends_in=drill.ends_in,
        phase=record.phase,
        verdict=judgement(record).verdict,
        decided_in=decision.from_phase,
        reason=decision.reason,
        num_requests=num_requests,
        most_requests=drill.most_requests,
        num_by_candidate=seen.num_until(until_s, "candidate"),
        num_replays=num_replays,
        seconds=round(until_s - record.began_at_s, 1),
        num_kills=len(killed),
        num_asked=seen.num_asked,
        num_fallbacks=num_fallbacks,
        num_lost=seen.num_lost,
        num_wrong=seen.num_wrong,
        triton_version=version,
        faults=tuple(text for text, holds in checks.items() if not holds),
    )


def as_document(result: Result) -> dict[str, object]:
    """Return the result as a JSON-serialisable dictionary."""
    return {**asdict(result), "faults": list(result.faults)}
