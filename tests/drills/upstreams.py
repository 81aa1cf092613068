"""The drills of ``draftproof upstreams``: a candidate with a planted fault beside the server without one.

Both are proxies in processes of their own, in front of the tests' pair, whose answers they remember; so only
the fault is different. Clients compare every answer of the service with the server's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from build.repository import render_recipe
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.text.vocabulary import Vocabulary
from tests.integration.conftest import tiny_recipe
from tests.integration.front_door.conftest import MODEL, TEMPLATE, TOOLS_TEMPLATE
from tests.support.fault_proxy import Memory, comparable, events_of, fault_proxy
from tests.support.planted_faults import BY_NAME
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import END_OF_TEXT, build_tiny_pair
from tests.unit.upstreams.running import Running, record_of, running, write_plan

COLUMNS = {
    "Candidate": "drill",
    "Ended": "phase",
    "Verdict": "verdict",
    "Decided in": "decided_in",
    "Time": "seconds",
    "Client requests until then": "num_requests",
    "It answered": "answered",
    "Clients met the fault": "met",
    "Reason": "reason",
}
_NUM_CLIENTS, _NUM_QUESTIONS = 6, 800
_MAX_SEQ_LEN = 1024  # of questions for two calls
_EVENT_S = 0.02
_WITHIN_S = 480.0
_WAITED_S = 9.0  # the service asks the other server after ten
_POLL_S = 0.25
_ENDS_EARLY = "shadow"
_STOPPED_IN = "step/1"
_KILLED_IN = ("shadow", "step/2")


@dataclass(frozen=True)
class Drill:
    """One candidate and how its rollout must end.

    Attributes:
        ends_in: The phase.
        verdict: The verdict.
        because: A pattern that the reason matches.
        fault: What the candidate does wrong, by its name in ``planted_faults``.
        one_in: In which share of the questions.
        is_stopped: Whether the candidate gets SIGSTOP once it answers clients.
        clients_leave: Whether they ask nothing any more once the candidate gets replays.
        is_free: Whether clients ask at temperature 1 without a seed, so that nothing can be compared.
        is_killed: Whether the service gets SIGKILL in two phases, and is started again.
    """

    name: str
    ends_in: str
    verdict: str
    because: str
    fault: str = "nothing"
    one_in: int = 1
    is_stopped: bool = False
    clients_leave: bool = False
    is_free: bool = False
    is_killed: bool = False


def _bad(name: str, because: str, fault: str = "nothing", one_in: int = 1, **more: bool) -> Drill:
    return Drill(name, "rolled_back", "fail", because, fault, one_in, **more)


_PASSES = "every metric is within its limit"
DRILLS = (
    Drill("good", "promoted", "pass", _PASSES),
    Drill("good, the service killed with -9 twice", "promoted", "pass", _PASSES, is_killed=True),
    _bad("other tool arguments in 20 % of calls", "answers", "arguments of a call are others", 5),
    _bad("another token in 5 % of answers", "answers", "a token is replaced", 20),
    _bad("streams break off in 10 %", "errors", "streams break off", 10),
    _bad("HTTP status 500 in 10 %", "errors", "HTTP status 500", 10),
    _bad("HTTP status 429 in half", "errors", "HTTP status 429", 2),
    _bad("three times slower", "ttft|itl|e2e_tail", "three times slower"),
    _bad("stopped with SIGSTOP", "errors|timeouts|goodput|refused connections", is_stopped=True),
    Drill("good, the clients leave", "rolled_back", "inconclusive", "no new evidence", clients_leave=True),
    Drill("good, nothing can be compared", "rolled_back", "inconclusive", "answers", is_free=True),
)


def run(options: argparse.Namespace, folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Roll each candidate out, with the plan's weights and limits in shorter times."""
    with serving_calls(folder) as (url, no_spaces):
        memory = Memory(url)
        for number, drill in enumerate(DRILLS):
            if options.only in drill.name:
                (own := folder / str(number)).mkdir()
                yield _run(drill, memory, no_spaces, own)


@contextmanager
def serving_calls(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Serve the tests' pair with a chat template for calls of tools.

    Yields its address, and the ``logit_bias`` with which it, which was not trained, ends its JSON.
    """
    engines = build_tiny_pair(folder / "engines", draft="noisy", num_threads=1)
    templates = {"default": TEMPLATE, "tool_use": TOOLS_TEMPLATE}
    document = {"templates": templates, "special_tokens": {}, "special_names": [END_OF_TEXT]}
    (engines[1] / "chat.json").write_text(json.dumps(document), encoding="utf-8")
    recipe = tiny_recipe(MODEL)
    recipe = replace(recipe, serving=replace(recipe.serving, max_seq_len=_MAX_SEQ_LEN))
    directory = render_recipe(recipe, *engines, folder / "run").parent
    with ready_server(directory, with_openai=True) as server:
        texts = Vocabulary.from_file(engines[1] / "tokenizer.json").bytes_of
        no_spaces = {str(each): -100.0 for each, text in enumerate(texts) if text.isspace()}
        yield f"http://127.0.0.1:{server.ports.openai}", no_spaces


@dataclass(frozen=True)
class _Question:
    path: str
    body: dict[str, Any]
    expected: str


@dataclass(frozen=True)
class _Asked:
    """One request: when it ended, in Unix time, how long it took, who answered, and whether it was right."""

    ended_at_s: float
    seconds: float
    arm: str
    is_right: bool


def _questions(memory: Memory, no_spaces: dict[str, float], *, is_free: bool) -> list[_Question]:
    """Return greedy questions, a quarter of them for a call, with the server's own answers."""
    schema = {
        "type": "object",
        "properties": {"folder": {"enum": ["code", "letters", "other"]}},
        "required": ["folder"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "file_text", "parameters": schema}}
    calling = {
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": 60,
        "chat_template_kwargs": {"enable_thinking": False},
        "logit_bias": no_spaces,
    }
    sampling = {"temperature": 1.0} if is_free else {"temperature": 0}
    questions = []
    for number in range(_NUM_QUESTIONS):
        text = f"def function_{number}("
        if number % 4 == 0:
            path, asked = "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **calling}
        else:
            path, asked = "/v1/completions", {"prompt": text, "max_tokens": 10, "ignore_eos": True}
        streams = {"stream": True} if number % 3 else {}
        body = {"model": MODEL, **asked, **sampling, **streams, "return_token_ids": True}
        status, content = memory.ask(path, body)
        assert status == httpx.codes.OK, content
        questions.append(_Question(path, body, comparable(events_of(content))))
    return questions


def _serve(memory: Memory, fault: str, one_in: int, found: Any) -> None:
    with fault_proxy(memory, BY_NAME[fault], one_in=one_in, event_s=_EVENT_S) as planted:
        found.send(planted.url)
        signal.pause()


@contextmanager
def _proxy(memory: Memory, fault: str = "nothing", one_in: int = 1) -> Iterator[tuple[str, int]]:
    """Run a proxy in a process of its own; yields its address and process."""
    spawning = multiprocessing.get_context("spawn")
    found, told = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(memory, fault, one_in, told), daemon=True)
    process.start()
    try:
        url = found.recv()
        assert process.pid is not None
        yield url, process.pid
    finally:
        process.kill()
        process.join()


class _Clients:
    """Ask without a pause, each the next question, until they are stopped."""

    def __init__(self, questions: list[_Question], url: Callable[[], str]) -> None:
        self.asked: list[_Asked] = []
        self._questions, self._url = questions, url
        self._stops = threading.Event()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._ask_on, daemon=True) for _ in range(_NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self) -> None:
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self._stops.is_set():
                question = self._questions[next(self._numbers) % len(self._questions)]
                began_s = time.monotonic()
                try:
                    reply = client.post(f"{self._url()}{question.path}", json=question.body)
                except httpx.ConnectError:  # the service was killed, and comes back
                    time.sleep(_POLL_S)
                    continue
                except httpx.HTTPError:
                    arm, is_right = "", False
                else:
                    arm = reply.headers.get("X-Draftproof-Arm", "")
                    is_right = reply.status_code == httpx.codes.OK and _is(question, reply.content)
                self.asked.append(_Asked(time.time(), time.monotonic() - began_s, arm, is_right))


def _is(question: _Question, content: bytes) -> bool:
    with suppress(ValueError):
        is_whole = not question.body.get("stream") or b"data: [DONE]" in content
        return is_whole and comparable(events_of(content)) == question.expected
    return False


def _run(drill: Drill, memory: Memory, no_spaces: dict[str, float], folder: Path) -> dict[str, Any]:
    questions = _questions(memory, no_spaces, is_free=drill.is_free)
    _write_plan(folder)
    gone_s: list[tuple[float, float]] = []
    with (
        ExitStack() as running_now,
        _proxy(memory) as (old, _),
        _proxy(memory, drill.fault, drill.one_in) as (new, candidate),
    ):
        service = running_now.enter_context(running(folder, {"url": old}, {"url": new}))
        current = [service]
        clients = _Clients(questions, lambda: current[0].url)
        try:
            for phase in _KILLED_IN if drill.is_killed else ():
                _wait_for(current[0], phase)
                killed_at_s = time.time()
                running_now.close()
                current[0] = running_now.enter_context(running(folder, {"url": old}, {"url": new}))
                gone_s.append((killed_at_s, time.time()))
            if drill.is_stopped:
                _wait_for(service, _STOPPED_IN)
                os.kill(candidate, signal.SIGSTOP)
            if drill.clients_leave:
                _wait_for(service, _ENDS_EARLY)
                clients.stop()
            record = _wait_for(current[0], *ENDED)
        finally:
            clients.stop()
    return _result(drill, record, clients.asked, gone_s)


def _write_plan(folder: Path) -> None:
    """Write the default plan and limits, in shorter times, and wide limits of what a busy machine changes."""
    errors, times = _limit(0.01, 0.001), _limit(1.0, 1.0)
    # A tenth of the answers are calls, five times as long as others: the quantile of 0.9 is that of either.
    limits = {
        **{"answers": _limit(0.05, 0.02), "answers_repeated": _limit(0.01, 0.003), "min_requests": 50},
        **{"errors": errors, "timeouts": errors},
        **{"ttft": times, "itl": times, "e2e_tail": times, "quantile": 0.8},
    }
    replays = {"share": 1.0, "max_per_s": 100, "max_in_flight": 8, "max_queue": 64}
    shadow = {**replays, "min_pairs": 300, "bake_s": 5}
    steps = [
        {"weight": weight, "min_pairs": num_pairs, "bake_s": 5}
        for weight, num_pairs in ((0.05, 50), (0.2, 100), (0.45, 200))
    ]
    write_plan(folder, limits, shadow=shadow, steps=steps, idle_s=20.0, hold_s=60.0, max_pairs=6000)


def _limit(pass_below: float, rollback_above: float) -> dict[str, float]:
    return {"pass_below": pass_below, "rollback_above": rollback_above}


def _wait_for(service: Running, *phases: str) -> RolloutRecord:
    """Wait until a rollout is in one of some phases, or has ended, or for eight minutes."""
    ends_at_s = time.monotonic() + _WITHIN_S
    while (record := record_of(service)) is None or record.phase not in (*phases, *ENDED):
        if record is not None and time.monotonic() > ends_at_s:
            break
        time.sleep(_POLL_S)
    return record


def _result(
    drill: Drill, record: RolloutRecord, asked: list[_Asked], gone_s: list[tuple[float, float]]
) -> dict[str, Any]:
    """Return a row of the table; while the service was gone, requests under way were bound to fail."""
    judged = judgement(record)
    deciding = ("promoting", "rolling_back", *ENDED)
    decision = next(
        (each for each in record.transitions if each.to_phase in deciding), record.transitions[-1]
    )
    began_s = record.rollout.began_at_s
    until = [each for each in asked if began_s < each.ended_at_s - each.seconds <= decision.at_s]
    by_candidate = [each for each in until if each.arm == "candidate"]
    met = [
        each
        for each in until
        if (not each.is_right and not drill.is_free)
        or each.seconds > _WAITED_S
        or (drill.fault == "three times slower" and each.arm == "candidate")
    ]
    unexplained = [each for each in met if not any(begin <= each.ended_at_s <= end for begin, end in gone_s)]
    checks = {
        f"it ended in {record.phase}": record.phase == drill.ends_in,
        f"the verdict is {judged.verdict}": judged.verdict == drill.verdict,
        f"the reason is another: {judged.reason}": bool(re.search(drill.because, judged.reason)),
        "nobody asked": bool(until),
        "clients got answers that nothing was known about": not (drill.is_free and by_candidate),
        f"{len(unexplained)} clients met a fault": not unexplained or drill.verdict == "fail",
    }
    return {
        "drill": drill.name,
        "phase": record.phase,
        "verdict": judged.verdict,
        "decided_in": decision.from_phase,
        "seconds": round(decision.at_s - began_s, 1),
        "num_requests": len(until),
        "answered": _share(len(by_candidate), len(until)),
        "met": _share(len(met), len(until)),
        "longest_s": round(max((each.seconds for each in until), default=0.0), 1),
        "reason": judged.reason,
        "faults": [text for text, holds in checks.items() if not holds],
    }


def _share(count: int, of_all: int) -> str:
    return f"{count} ({count / max(1, of_all):.1%})"
