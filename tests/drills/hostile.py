"""Drills with hostile clients beside well-behaved ones: every known attack, and a fuzzer."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from pipelines.client import Generation
from pipelines.places import CODE
from tests.attacks import GRPC_ATTACKS, HTTP_ATTACKS, SMUGGLING_ATTACKS, Address, Attack
from tests.drills.asking import asking, outcome_of
from tests.drills.outcome import BUSY, Drill, Outcome, is_calm
from tests.drills.place import Place

_ATTACKS_AT_A_TIME = 6
_ROUNDS, _ROUND_S, _STARTS_WITHIN_S = 24, 1.0, 2.0
_SEED, _FUZZED_AT_MOST_S = 7, 300.0
_NEVER_COMPLETE = ("slow header", "cancelled at random instants")  # the client's own fault: nobody else waits


def attacks(place: Place) -> list[tuple[Attack, Address]]:
    """Return all attacks, each with the port it goes to."""
    return [
        *((attack, place.http) for attack in (*HTTP_ATTACKS, *SMUGGLING_ATTACKS)),
        *((attack, place.grpc) for attack in GRPC_ATTACKS),
    ]


def _attacked(place: Place) -> Outcome:
    """Send every attack while four clients ask."""
    place.server()
    before = place.pids()
    seen = Outcome()
    with asking(place, ("generate", "router"), 4, seen.tally), ThreadPoolExecutor(_ATTACKS_AT_A_TIME) as pool:
        every = attacks(place)
        replies = list(pool.map(lambda each: each[0].send(each[1]), every))
    kinds: Counter[str] = Counter()
    for (attack, _), reply in zip(every, replies, strict=True):
        kind = "left" if attack.name in _NEVER_COMPLETE else _kind(reply.status, reply.text)
        kinds[kind] += 1
        if kind in ("hung", "failed"):
            seen.faults.append(f"{attack.name}: {kind}: {reply.status} {reply.text[:100]}")
    deaths = sum(place.pids().get(name) != pid for name, pid in before.items())
    seen.figures = {
        "attacks": len(every),
        **{
            kind: kinds[kind]
            for kind in ("refused_typed", "refused", "closed", "left", "answered", "hung", "failed")
        },
        "deaths": deaths,
    }
    seen.metrics_are_true = is_calm(place)
    if deaths:
        seen.faults.append(f"{deaths} processes were replaced")
    return seen


def _kind(status: str, text: str) -> str:
    if status in ("silent", "DEADLINE_EXCEEDED"):
        return "hung"
    if status in ("500", "UNKNOWN", "INTERNAL") or "Traceback" in text or "draftproof/internal" in text:
        return "failed"
    if status == "closed":
        return "closed"
    if "draftproof/" in text:
        return "refused_typed"
    return "answered" if status in ("200", "OK") else "refused"


def _beside_a_fuzzer(place: Place) -> Outcome:
    """Measure the pauses between one client's chunks, with and without a fuzzer, in turn."""
    place.server()
    before = place.pids()
    seen = Outcome()
    pauses: dict[bool, list[float]] = {False: [], True: []}
    command = [sys.executable, "-m", "tests.attacks.fuzz", str(place.ports.http), str(place.ports.grpc)]
    command += [str(_SEED), str(_FUZZED_AT_MOST_S)]
    with subprocess.Popen(command, cwd=CODE, stdout=subprocess.PIPE, text=True) as fuzzer:
        time.sleep(_STARTS_WITHIN_S)
        for number in range(_ROUNDS):
            is_fuzzing = bool(number % 2)
            fuzzer.send_signal(signal.SIGCONT if is_fuzzing else signal.SIGSTOP)
            pauses[is_fuzzing] += _pauses(place, seen)
        fuzzer.send_signal(signal.SIGTERM)
        told = json.loads(fuzzer.communicate(timeout=60)[0])
    alone_ms, beside_ms = (1000 * _p99(pauses[fuzzing]) for fuzzing in (False, True))
    seen.figures = {
        "itl_p99_alone_ms": alone_ms,
        "itl_p99_with_fuzzer_ms": beside_ms,
        "itl_p99_ratio": beside_ms / alone_ms,
        "pauses_measured": sum(map(len, pauses.values())),
        "damaged_requests": told["num_sent"],
    }
    seen.faults = [f"an improper answer: {each}" for each in told["improper"][:10]]
    if place.pids() != before:
        seen.faults.append("a process was replaced")
    return seen


def _pauses(place: Place, seen: Outcome) -> list[float]:
    """Stream one answer after another and return the seconds between the chunks of each."""
    found: list[float] = []
    until_s = time.monotonic() + _ROUND_S
    number = 0
    with place.client() as client:
        while time.monotonic() < until_s:
            question = place.questions[number % len(place.questions)]
            sent_s = time.monotonic()
            arrivals: list[float] = []

            def answer() -> Generation:
                stream = client.stream(question.request, "generate")
                chunks = [*stream]
                arrivals.extend(chunk.received_at_s for chunk in chunks)
                return stream.result()

            seen.tally.note(sent_s, outcome_of(answer, question))
            found += [later - earlier for earlier, later in itertools.pairwise(arrivals)]
            number += 1
    return found


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


HOSTILE = (
    Drill("every attack of tests/attacks", _attacked, BUSY),
    Drill("a client's ITL while a fuzzer runs", _beside_a_fuzzer),
)
