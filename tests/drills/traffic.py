"""Clients of ``router`` that compare every answer with the target's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.errors import DraftproofError

NUM_CLIENTS = 4


@dataclass(frozen=True)
class Heard:
    """The result of one request.

    Attributes:
        at_s: Unix time at which it ended.
        arm: The arm that answered; "" if none did.
        fallback_from: The arms that failed to answer before.
        error: Why there is no answer; "" if there is one.
        is_wrong: Whether the answer differs from the target's own.
    """

    at_s: float
    arm: str = ""
    fallback_from: tuple[str, ...] = ()
    error: str = ""
    is_wrong: bool = False


@dataclass
class Traffic:
    """All results so far; grows while clients ask."""

    heard: list[Heard] = field(default_factory=list)
    num_asked: int = 0

    @property
    def num_lost(self) -> int:
        """Count requests without an answer."""
        return self.num_asked - sum(not each.error for each in self.heard)

    @property
    def num_wrong(self) -> int:
        """Count answers that differ from the target's own."""
        return sum(each.is_wrong for each in self.heard)

    def num_until(self, at_s: float, arm: str = "") -> int:
        """Count the answers until a time, of one arm or of all."""
        return sum(each.at_s <= at_s and arm in ("", each.arm) for each in self.heard)


def said(answer: Generation) -> tuple[object, ...]:
    """Return the parts of an answer that the target alone determines."""
    return answer.text, answer.output_ids, answer.finish_reason, answer.log_probs, answer.top_log_probs


@contextmanager
def traffic(url: str, requests: Sequence[CompletionRequest]) -> Iterator[Traffic]:
    """Ask continuously in the background; each client starts at another place in the list."""
    with Client.connect(url) as client, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        expected = list(pool.map(lambda each: said(client.generate(each, "generate_target")), requests))
    seen, stop, lock = Traffic(), threading.Event(), threading.Lock()

    def ask(number: int) -> None:
        index = number * len(requests) // NUM_CLIENTS
        with Client.connect(url) as client:
            while not stop.is_set():
                index = (index + 1) % len(requests)
                with lock:
                    seen.num_asked += 1
                try:
                    answer = client.stream(requests[index], "router").result()
                except DraftproofError as error:
                    seen.heard.append(Heard(time.time(), error=str(error)))
                    continue
                is_wrong = said(answer) != expected[index]
                seen.heard.append(Heard(time.time(), answer.arm, answer.fallback_from, is_wrong=is_wrong))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
