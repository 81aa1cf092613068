"""Faults planted between a candidate and ``draftproof verify``, and what found each."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.other_servers.fault_proxy import (
    Ask,
    Body,
    Fault,
    Sometimes,
    change_a_token,
    cut,
    cut_streams,
    drop_a_token,
    fault_proxy,
    ignore_the_temperature,
    let_the_draft_stand,
)

_ONE_IN = 100
_RARE: dict[str, Fault] = {
    "another token": change_a_token,
    "a token left out": drop_a_token,
    "a token of the draft that the target rejects": let_the_draft_stand,
    "the connection closes before the end": cut,
}
_CONSTANT: dict[str, Fault] = {
    "sampled instead of greedy": ignore_the_temperature,
    "the last chunk of streams without its text": cut_streams,
}


def find_planted(url: str, verify: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Plant one fault after the other.

    Args:
        url: Address of the candidate.
        verify: Return the report of ``draftproof verify`` on the server at an address.

    Returns:
        For each fault the verdict, the sections that failed, and numbers of completions that were no streams:
        of those that it was planted in (None for faults of streams) and of all. A fault that asks another
        question counts, also where the answer is the same. A fault of streams is left out where streams are
        not compared.
    """
    found = []
    for name, fault in {**_RARE, **_CONSTANT}.items():
        planted, all_answers = _Counted(fault), itertools.count()
        served = Sometimes(planted, _ONE_IN) if name in _RARE else planted
        in_streams = fault is cut_streams

        def counted(request: Body, ask: Ask, numbers: Iterator[int] = all_answers) -> Body:
            next(numbers)
            return ask(request)

        with fault_proxy(url, cut_streams if in_streams else served, counted) as proxy:
            report = verify(proxy)
        titles = [section["title"] for section in report["sections"]]
        if in_streams and not any("streamed" in title for title in titles):
            continue
        failed = [section["title"] for section in report["sections"] if section["verdict"] == "fail"]
        found.append(
            {
                "fault": name,
                "one_in": _ONE_IN if name in _RARE else 1,
                "verdict": report["verdict"],
                "found_by": failed,
                "planted": None if in_streams else planted.number,
                "answers": next(all_answers),
            }
        )
    return found


class _Counted:
    """A fault that counts the answers that it may have changed."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._lock = threading.Lock()
        self.number = 0

    def __call__(self, request: Body, ask: Ask) -> Body:
        right: list[str] = []

        def noted(body: Body) -> Body:
            answer = ask(body)
            if body == request:
                right.append(json.dumps(answer))
            return answer

        changed = True
        try:
            answer = self._fault(request, noted)
            changed = json.dumps(answer) not in right
            return answer
        finally:
            with self._lock:
                self.number += changed
