"""The drills of rollouts: each candidate, how its rollout has to end, and within how many requests."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from build.engines import build_engines
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import engine_conditions
from pipelines.canary.controller.own_servers import served_pair
from pipelines.canary.controller.state import Store
from pipelines.canary.report.record import PROMOTING, RolloutRecord, judgement
from pipelines.canary.run_files import arms_file, state_file
from pipelines.deploy.server import beside
from pipelines.places import CODE
from pipelines.router.arms import read_table
from tests.drills.openai_clients import Asked, Crowd
from tests.drills.setting import PLAN, Setting, demo_questions, drill_limits
from tests.support.ready_server import ready_server

COLUMNS = {
    "Candidate": "drill",
    "Ended": "phase",
    "Decided in": "decided_in",
    "Client requests until then": "num_requests",
    "Time": "seconds",
    "Requests of the drill": "num_asked",
    "Lost": "num_lost",
    "Wrong": "num_wrong",
}
_NUM_CLIENTS = 4
_UNREADY_S = 1.0  # a single look may time out on a busy machine
_ASK_ON_S = 2.0  # after the rollout
_GONE = "refused connections|errors"
"""Requests to a crashed candidate fail; either metric may be the first to show it."""

PHASES_UP = ("preflight", "loading", "shadow", "step/1", "promoting", "settling", "retiring")


@dataclass(frozen=True)
class Drill:
    """One candidate and the outcome that its rollout must have.

    Attributes:
        ends_in: The phase in which the rollout must end.
        most_requests: The most client requests that may pass before the decision.
        because: A pattern that the decision's reason must match.
        fault: A key of ``candidate_faults.FAULTS``; "" for no fault.
        has_other_tokenizer: Whether the candidate's tokenizer has two tokens exchanged.
        killed_in: The phases in which its controller gets SIGKILL, once each.
    """

    name: str
    ends_in: str
    most_requests: int
    because: str
    fault: str = ""
    has_other_tokenizer: bool = False
    killed_in: tuple[str, ...] = ()


GOOD = Drill("a good candidate", "promoted", 6000, "every metric is within its limit")
TOKENIZER = Drill("a wrong tokenizer", "rolled_back", 100, "tokenizer", has_other_tokenizer=True)
LESS_ACCEPTED = Drill("acceptance cut by 20 %", "rolled_back", 1500, "acceptance_rate", "less accepted")
SLOWER = Drill("30 % slower", "rolled_back", 4000, "ttft|itl|e2e_tail", "slower")
FAILING = Drill("2 % of requests fail", "rolled_back", 3000, "errors", "failing")
CRASHING = Drill("its process crashes", "rolled_back", 1500, _GONE, "crashing")
PAUSING = Drill("a pause of 0.6 s in 4 % of the answers", "rolled_back", 4000, "pauses", "pausing")
LEAKING = Drill("a leak of a megabyte per answer", "rolled_back", 4000, "memory", "leaking")
BURNING = Drill("twice the CPU time per token", "rolled_back", 4000, "cpu_per_token", "burning")


def _heard(name: str, differs_in: str, fault: str) -> Drill:
    """Make a drill whose candidate answers differently in `differs_in`, which the reason must name."""
    return Drill(name, "rolled_back", 1000, rf"fail: answers \({differs_in} of", fault)


DIVERGING = _heard("different tokens for 1 % of prompts", "tokens", "diverging")
SHORT = _heard("the last token is missing for 2 % of prompts", "tokens", "short")
OTHER_TEXT = _heard("different text of the same tokens for 2 % of prompts", "text", "other text")
STOPPING = _heard("wrong finish_reason for 3 % of prompts", "finish_reason", "stopping")
WRONG_CHUNKS = _heard("wrong chunk lengths for 3 % of prompts", "chunks", "wrong chunks")
OTHER_LOG_PROBS = _heard(
    "wrong log probabilities in 10 % of the requests for them", "log_probs", "other log probabilities"
)
KILLED_UP = Drill(
    "a good candidate, the controller killed in each phase",
    "promoted",
    6000,
    "every metric is within its limit",
    killed_in=PHASES_UP,
)
KILLED_DOWN = Drill(
    "its process crashes, the controller killed during the rollback",
    "rolled_back",
    1500,
    _GONE,
    "crashing",
    killed_in=("step/1", "rolling_back"),
)

DRILLS = (
    *(GOOD, TOKENIZER, DIVERGING, LESS_ACCEPTED, SLOWER, FAILING, CRASHING, STOPPING),
    *(SHORT, OTHER_TEXT, OTHER_LOG_PROBS, WRONG_CHUNKS, PAUSING, LEAKING, BURNING),
    *(KILLED_UP, KILLED_DOWN),
)


def run(options: argparse.Namespace, folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Roll the candidates out with a recipe's pair, each on a server of its own."""
    recipe = load_recipe(options.recipe, "embedded")
    built = build_engines(recipe)
    engines = {role: Path(built[role]) for role in ("draft", "target")}
    document = yaml.safe_load(recipe.path.read_text(encoding="utf-8"))
    setting = Setting(document, engines["draft"], engines["target"], demo_questions(), PLAN, drill_limits())
    about |= {"engines": engine_conditions(engines)}
    about |= {"plan": asdict(PLAN), "limits": asdict(drill_limits())}
    for number, drill in enumerate(DRILLS):
        if options.only in drill.name:
            (own := folder / str(number)).mkdir()
            yield run_drill(drill, setting, own)


def run_drill(drill: Drill, setting: Setting, folder: Path) -> dict[str, Any]:
    """Run one drill: a server, clients that know every right answer, and a controller that may be killed.

    Args:
        setting: The pair, plan and requests to run it with.
        folder: An empty folder that gets the run directory; inside the checkout, or with a short path.
    """
    directory = setting.render(folder)
    draft, target = setting.candidate_engines(folder, has_other_tokenizer=drill.has_other_tokenizer)
    orders = folder / "orders.json"
    paths = {"run": directory, "draft": draft, "target": target, "plan": setting.write_plan(folder)}
    known = {"recipe": setting.candidate_recipe(), "fault": drill.fault}
    orders.write_text(json.dumps({**{name: str(path) for name, path in paths.items()}, **known}))
    with ready_server(directory, with_openai=True) as server:
        crowd = Crowd(server.openai_url, setting.questions, lambda name: {})
        crowd.start([str(number) for number in range(_NUM_CLIENTS)])
        try:
            with Health(server.openai_url) as health:
                killed = _roll_out(orders, drill.killed_in)
                time.sleep(_ASK_ON_S)
        finally:
            asked = crowd.stop()
    store = Store.existing(state_file(directory))
    record = store.record()
    store.close()
    result = _result(drill, record, asked, killed, directory)
    if (seconds := health.longest_unready_s) > _UNREADY_S:
        result["faults"].append(f"OpenAI's API was not ready for {seconds:.1f} s, so a pod would leave")
    return result


def _roll_out(orders: Path, killed_in: tuple[str, ...]) -> list[str]:
    """Carry out the rollout and return the phases in which the controller was killed."""
    killed: list[str] = []
    command = [sys.executable, "-m", "tests.drills.controller", str(orders)]
    while True:
        with subprocess.Popen(command, cwd=CODE, stdout=subprocess.PIPE, text=True) as controller:
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
    drill: Drill, record: RolloutRecord, asked: Sequence[Asked], killed: list[str], directory: Path
) -> dict[str, Any]:
    decided = ("promoting", "rolling_back", "rolled_back")
    decision = next(each for each in record.transitions if each.to_phase in decided)
    num_requests = sum(record.rollout.began_at_s < each.ended_at_s <= decision.at_s for each in asked)
    num_wrong = sum(each.is_right is False for each in asked)
    errors = [each.error or "its connection broke" for each in asked if each.error or each.is_broken]
    table, serves = read_table(arms_file(directory)), served_pair(directory).name
    is_promoted = record.phase in PROMOTING
    checks = {
        f"it ended in {record.phase}": record.phase == drill.ends_in,
        f"the reason is another: {decision.reason}": bool(re.search(drill.because, decision.reason)),
        f"it took {num_requests} requests": num_requests <= drill.most_requests,
        f"{len(errors)} requests were lost: {errors[:3]}": not errors,
        f"{num_wrong} answers were wrong": num_wrong == 0,
        "the clients asked nothing": bool(asked),
        f"the controller was killed in {killed}": set(killed) == set(drill.killed_in),
        "a candidate is still in the table of arms": not table.candidate,
        f"{serves} serves at {table.stable}": (serves == "drill-candidate") == is_promoted
        and Path(table.stable).parent.name == directory.name,
        "the second server is left": not beside(directory).exists(),
        "a candidate answered that should not have been started": not (
            drill.has_other_tokenizer and any(each.arm == "candidate" for each in record.requests)
        ),
    }
    return {
        "drill": drill.name,
        "phase": record.phase,
        "verdict": judgement(record).verdict,
        "decided_in": decision.from_phase,
        "reason": decision.reason,
        "num_requests": num_requests,
        "num_by_candidate": sum(each.arm == "candidate" and not each.is_replay for each in record.requests),
        "num_replays": sum(each.is_replay for each in record.requests),
        "seconds": round(decision.at_s - record.rollout.began_at_s, 1),
        "num_kills": len(killed),
        "num_asked": len(asked),
        "num_lost": len(errors),
        "num_wrong": num_wrong,
        "faults": [text for text, holds in checks.items() if not holds],
    }


class Health:
    """Asks a front door during a block whether it is ready."""

    def __init__(self, url: str) -> None:
        self.longest_unready_s = 0.0
        self._url = f"{url}/health"
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *of_the_block: object) -> None:
        self._stops.set()
        self._thread.join()

    def _ask(self) -> None:
        ready_s = time.monotonic()
        with httpx.Client(timeout=30, trust_env=False) as client:
            while not self._stops.wait(0.05):
                is_ready = client.get(self._url).status_code == httpx.codes.OK
                now_s = time.monotonic()
                self.longest_unready_s = max(self.longest_unready_s, 0.0 if is_ready else now_s - ready_s)
                ready_s = now_s if is_ready else ready_s
