"""Clients that ask a front door without a pause, and compare every answer with the right one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

_TIMEOUT_S = 120.0
_POLL_S = 0.05
_LEARNED_AT_A_TIME = 8
_SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 60},
        "b": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["a", "b"],
}
_COMMON = {"max_tokens": 240, "return_token_ids": True, "logprobs": 2}
QUESTIONS: tuple[dict[str, Any], ...] = (
    *({**_COMMON, "prompt": f"def f{number}(", "temperature": 0, "ignore_eos": True} for number in range(8)),
    *({**_COMMON, "prompt": f"def g{number}(", "seed": number, "ignore_eos": True} for number in range(8)),
    *(
        {
            **_COMMON,
            "prompt": f"class A{number}",
            "seed": number,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        }
        for number in range(8)
    ),
)
"""Greedy, seeded and structured; four of five requests of each client are streamed."""

Answer = tuple[str, list[int], list[float], str]
"""Text, tokens, log probabilities and finish reason."""


@dataclass
class Asked:
    """One request.

    Attributes:
        is_right: Whether the answer is the right one, and what arrived of a broken one its beginning; None
            if it did not arrive.
        is_broken: Whether its connection broke, because a front door ended, and it was sent again.
        ended_at_s: Unix time at which the client had the answer, or the error.
        arrivals_s: When it was sent, and when each chunk arrived, on ``time.monotonic``'s clock.
    """

    session_id: str
    ended_at_s: float = 0.0
    is_right: bool | None = None
    is_broken: bool = False
    error: str = ""
    arrivals_s: list[float] = field(default_factory=list)

    def is_open(self, at_s: float) -> bool:
        """Whether it was being answered at some time: the client had a part of the answer."""
        return len(self.arrivals_s) > 2 and self.arrivals_s[1] < at_s < self.arrivals_s[-1]

    def pause_s(self, from_s: float) -> float:
        """Return the longest time without a chunk that ended after a time."""
        pairs = zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        return max(after - before for before, after in pairs if after > from_s)


class _BadGatewayError(Exception):
    """HAProxy lost the front door before the answer began."""


class Crowd:
    """One client for each session, on a thread of its own.

    Args:
        url: Address of the front door.
        questions: What the clients ask in turn.
        session: What requests of a session add to a question.
    """

    def __init__(
        self,
        url: str,
        questions: Sequence[dict[str, Any]] = QUESTIONS,
        session: Callable[[str], dict[str, Any]] = lambda name: {"session_id": name},
    ) -> None:
        self.asked: list[Asked] = []
        self._questions = questions
        self._session = session
        self._url = f"{url}/v1/completions"
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []
        self._repeating: set[int] = set()  # threads
        with (
            httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client,
            ThreadPoolExecutor(_LEARNED_AT_A_TIME) as pool,
        ):
            alone = [{**question, "num_draft_tokens": 0} for question in questions]
            self._expected = list(pool.map(partial(self._whole, client), alone))

    def start(self, sessions: Sequence[str]) -> None:
        """Begin to ask, each client with another part of the questions: repeated ones are little evidence."""
        self._stops.clear()
        share = len(self._questions) // len(sessions)
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number * share, name), daemon=True)
            for number, name in enumerate(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[Asked]:
        """Wait for the last answers, and return all requests since ``start``."""
        self._stops.set()
        for thread in self._threads:
            thread.join()
        asked, self.asked = self.asked, []
        return asked

    def wait_for_repeats(self) -> None:
        """Wait until each answer that broke off has been asked for again, and has ended."""
        while self._repeating:
            time.sleep(_POLL_S)

    def _ask_on(self, number: int, session_id: str) -> None:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            while not self._stops.is_set():
                number += 1
                asked, place = Asked(session_id), number % len(self._questions)
                question = {**self._questions[place], **self._session(session_id)}
                try:
                    ask = self._streamed if number % 5 else self._whole
                    self._check(ask, client, question, self._expected[place], asked)
                except Exception as error:  # of any class: an answer that cannot be read is lost
                    asked.error = repr(error)[:300]
                asked.ended_at_s = time.time()
                self.asked.append(asked)

    def _check(
        self, ask: Any, client: httpx.Client, question: dict[str, Any], expected: Answer, asked: Asked
    ) -> None:
        """Ask, and once more if the connection breaks: only a front door that ends may break it."""
        arrived: list[int] = []
        try:
            asked.is_right = ask(client, question, asked.arrivals_s, arrived) == expected
        except (httpx.RemoteProtocolError, httpx.ReadError, _BadGatewayError):
            asked.is_broken = True
            self._repeating.add(threading.get_ident())
            is_beginning = arrived == expected[1][: len(arrived)]
            try:
                asked.is_right = ask(client, question, asked.arrivals_s, []) == expected and is_beginning
            finally:
                self._repeating.discard(threading.get_ident())

    def _whole(
        self, client: httpx.Client, question: dict[str, Any], arrivals_s: Any = (), arrived: Any = ()
    ) -> Answer:
        reply = client.post(self._url, json=question)
        if reply.status_code == httpx.codes.BAD_GATEWAY:  # from HAProxy, which lost the front door
            raise _BadGatewayError
        return _joined(reply.raise_for_status().json()["choices"])

    def _streamed(
        self, client: httpx.Client, question: dict[str, Any], arrivals_s: list[float], arrived: list[int]
    ) -> Answer:
        arrivals_s.append(time.monotonic())
        choices = []
        with client.stream("POST", self._url, json={**question, "stream": True}) as reply:
            if reply.status_code == httpx.codes.BAD_GATEWAY:
                raise _BadGatewayError
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    arrivals_s.append(time.monotonic())
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise ValueError(event["error"]["message"])
                    choices += event["choices"]
                    arrived += [token for choice in event["choices"] for token in choice["token_ids"]]
        return _joined(choices)


def _joined(choices: Sequence[dict[str, Any]]) -> Answer:
    """Join the chunks of an answer; one without an end is incomplete."""
    if not choices or not choices[-1]["finish_reason"]:
        raise ValueError("the answer has no end")
    text, ids, log_probs = "", [], []
    for choice in choices:
        text += choice["text"]
        ids += choice["token_ids"]
        log_probs += (choice.get("logprobs") or {"token_logprobs": []})["token_logprobs"]
    return text, ids, log_probs, choices[-1]["finish_reason"]
