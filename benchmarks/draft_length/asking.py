"""Ask a server, and time what it streams."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from pipelines.deploy.ports import HOST
from pipelines.errors import VerificationError

_FILE = Path(__file__).with_name("prompts.jsonl")
_TIMEOUT_S = 900.0  # for a chunk: a long prompt takes minutes


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        kind: Kind of text.
        fields: ``prompt``, or ``messages`` of a chat.
    """

    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        text: The text.
        num_tokens: Its tokens.
        first_s: Seconds until the first chunk.
        decode_s: Seconds from the first chunk to the last one.
        num_prompt_tokens: Tokens of the prompt.
        num_cached: Those of them that were not computed.
    """

    text: str
    num_tokens: int
    first_s: float
    decode_s: float
    num_prompt_tokens: int
    num_cached: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first one, per second: the prompt does not count."""
        return (self.num_tokens - 1) / self.decode_s


def read_prompts() -> dict[str, list[Prompt]]:
    """Return kind -> its prompts."""
    sets: dict[str, list[Prompt]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        kind = fields.pop("kind")
        sets.setdefault(kind, []).append(Prompt(kind, fields))
    return sets


def ask(port: int, prompt: Prompt, max_tokens: int, temperature: float, length: int | None) -> Answer:
    """Ask one prompt.

    Args:
        port: Port of the front door.
        prompt: The prompt.
        max_tokens: Tokens of the answer, at most.
        temperature: Temperature; with a seed.
        length: ``num_draft_tokens``; None to let the server choose.

    Raises:
        VerificationError: The server refused, or the stream is not whole.
    """
    body = {
        **prompt.fields,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({} if length is None else {"num_draft_tokens": length}),
    }
    path = "/v1/chat/completions" if "messages" in prompt.fields else "/v1/completions"
    connection = HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
    begun_s = time.monotonic()
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        texts, arrivals_s, usage = list[str](), list[float](), dict[str, Any]()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: ") :])
            for choice in event.get("choices", ()):
                texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
                if texts[-1]:
                    arrivals_s.append(time.monotonic())
            usage = event.get("usage") or usage
    finally:
        connection.close()
    num_tokens = usage.get("completion_tokens", 0)
    if num_tokens < 2 or len(arrivals_s) < 2:
        raise VerificationError(
            f"an answer cannot be timed: {response.status}, {num_tokens} tokens in {len(arrivals_s)} chunks, "
            f"for {prompt.fields}",
            "read the server's log, or replace the prompt",
        )
    return Answer(
        "".join(texts),
        num_tokens,
        arrivals_s[0] - begun_s,
        arrivals_s[-1] - arrivals_s[0],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def ask_all(
    port: int,
    prompts: Sequence[Prompt],
    num_at_once: int,
    max_tokens: int,
    temperature: float,
    length: int | None,
) -> tuple[list[Answer], float]:
    """Ask prompts, some at a time; returns the answers, and the seconds that all of them took."""
    started_s = time.monotonic()
    with ThreadPoolExecutor(num_at_once) as pool:
        asked = pool.map(lambda prompt: ask(port, prompt, max_tokens, temperature, length), prompts)
        answers = list(asked)
    return answers, time.monotonic() - started_s
