"""Measures what a hostile request costs another client: ``python -m tests.attacks.cost --url http://...:9000``.

A stream of the target alone runs all the time. Its speed and its longest silence while the request is
answered are compared with those before, and with what a usual chat costs it. Every body is sent once, by a
client that leaves after some seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from tests.attacks import guides, pages

LEAVES_AFTER_S = 20.0
_ALONE_S = 2.0
_STREAM = {
    **{"prompt": "def area(radius):", "max_tokens": 400, "temperature": 0},
    **{"stream": True, "ignore_eos": True, "num_draft_tokens": 0},  # a chunk is a token
}
_USUAL = b'{"prompt": "a", "max_tokens": 2}'

Attack = tuple[str, str, Callable[[], bytes]]
"""Name, path, and what builds the body."""


@dataclass(frozen=True)
class Cost:
    """What one request did.

    Attributes:
        name: The request.
        reply: Status of the reply; what happened instead.
        seconds: Until the reply, or until the client left.
        share: Tokens per second of the other stream, divided by those before.
        silence_s: Longest time without a token of the other stream.
        num_broken: Streams of the other client that ended without their end.
        is_alive: Whether a usual request is answered afterwards.
    """

    name: str
    reply: str
    seconds: float
    share: float
    silence_s: float
    num_broken: int
    is_alive: bool


def attacks() -> Iterator[Attack]:
    """Yield a usual chat, then every request that may cost others something."""
    usual = {"messages": [{"role": "user", "content": "What is a stack?"}], "max_tokens": 32}
    yield "a usual chat", "/v1/chat/completions", lambda: json.dumps(usual).encode()
    for path, bodies in (("/v1/chat/completions", guides.CHAT), ("/v1/completions", guides.COMPLETIONS)):
        for name, body in bodies.items():
            yield name, path, lambda body=body: json.dumps(body()).encode()
    for size in (40_000, 1_000_000):
        for number, content in enumerate(pages.long_key_bodies(size)):
            yield f"a name of {size:,} bytes, {number}", "/v1/completions", lambda content=content: content


class OtherClient:
    """A client that streams answers one after the other and notes when tokens came."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._times: list[float] = []
        self.num_broken = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> OtherClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def between(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Return tokens per second and the longest silence, seconds, of a time."""
        times = [each for each in self._times if begin_s <= each <= end_s]
        marks = [begin_s, *times, end_s]
        longest = max(after - before for before, after in itertools.pairwise(marks))
        return len(times) / (end_s - begin_s), longest

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._stream()
            except httpx.HTTPError:
                self.num_broken += 1
                time.sleep(0.05)

    def _stream(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=_STREAM, timeout=30) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    self._times.append(time.monotonic())
                if self._is_over.is_set():
                    return


def cost_of(url: str, attack: Attack, other: OtherClient) -> Cost:
    """Send one request beside a stream."""
    name, path, build = attack
    content = build()
    began_s = time.monotonic()
    time.sleep(_ALONE_S)
    sent_s = time.monotonic()
    reply = _reply(url, path, content)
    replied_s = time.monotonic()
    time.sleep(max(0.5 - (replied_s - sent_s), 0.0))
    alone, _ = other.between(began_s, sent_s)
    beside, silence_s = other.between(sent_s, time.monotonic())
    is_alive = _reply(url, "/v1/completions", _USUAL) == "200"
    share = beside / alone if alone else 0.0
    return Cost(name, reply, replied_s - sent_s, share, silence_s, other.num_broken, is_alive)


def _reply(url: str, path: str, content: bytes) -> str:
    try:
        return str(httpx.post(url + path, content=content, timeout=LEAVES_AFTER_S).status_code)
    except httpx.TimeoutException:
        return f"none in {LEAVES_AFTER_S:g} s"
    except httpx.HTTPError as error:
        return type(error).__name__


def rows(costs: list[Cost]) -> list[str]:
    """Return the costs as rows of a table in Markdown."""
    return [
        f"| {each.name} | {each.reply} | {each.seconds:.1f} s | {each.share:.0%} | {each.silence_s:.2f} s | "
        f"{each.num_broken} |"
        for each in costs
    ]


def main() -> None:
    """Run all attacks and print the table; then write it as JSON if a file is named."""
    parser = argparse.ArgumentParser(description="Measure what hostile requests cost another client.")
    parser.add_argument("--url", required=True, help="the front door's address")
    parser.add_argument("--recover-s", type=float, default=30.0, help="wait for a server that died")
    options = parser.parse_args()
    print("| Request | Reply | after | speed of the other stream | its longest silence | broken streams |")
    print("|---|---|---|---|---|---|")
    for attack in attacks():
        with OtherClient(options.url) as other:
            cost = cost_of(options.url, attack, other)
        print(*rows([cost]), flush=True)
        if not cost.is_alive:
            _wait(options.url, options.recover_s)


def _wait(url: str, within_s: float) -> None:
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s and _reply(url, "/v1/completions", _USUAL) != "200":
        time.sleep(0.5)


if __name__ == "__main__":
    main()
