"""Clients of ``router`` that know every answer beforehand: the target's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipelines.client import Client, CompletionRequest
from pipelines.errors import DraftproofError

NUM_CLIENTS = 4


@dataclass(frozen=True)
class Heard:
    """One answer, or the lack of one.

    Attributes:
        at_s: Unix time of its end.
        arm: Who answered; "" if nobody did.
        fallback_from: Arms that were to answer before.
        error: Why there is none; "" for an answer.
        is_wrong: It is not the target's own.
    """

    at_s: float
    arm: str = ""
    fallback_from: tuple[str, ...] = ()
    error: str = ""
    is_wrong: bool = False


@dataclass
class Traffic:
    """What the clients have heard; grows while they ask."""

    heard: list[Heard] = field(default_factory=list)
    num_asked: int = 0

    @property
    def num_lost(self) -> int:
        """Requests that got an error, or nothing at all."""
        return self.num_asked - sum(not each.error for each in self.heard)

    @property
    def num_wrong(self) -> int:
        """Answers that are not the target's own."""
        return sum(each.is_wrong for each in self.heard)

    def num_until(self, at_s: float, arm: str = "") -> int:
        """Answers until then, of one arm or of all."""
        return sum(each.at_s <= at_s and arm in ("", each.arm) for each in self.heard)


@contextmanager
def traffic(url: str, requests: Sequence[CompletionRequest]) -> Iterator[Traffic]:
    """Ask all the time, each client from another place of the list on; whole when the block has ended."""
    with Client.connect(url) as client, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        expected = list(pool.map(lambda each: client.generate(each, "generate_target").output_ids, requests))
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
                is_wrong = answer.output_ids != expected[index]
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
