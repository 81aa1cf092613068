"""Ask a server, and time what it streams."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.streams import TIMEOUT_S, Streamed, ask_stream
from pipelines.deploy.ports import HOST
from pipelines.errors import VerificationError

_FILE = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        kind: Kind of text.
        fields: ``prompt``, or ``messages`` of a chat.
    """

    kind: str
    fields: dict[str, Any]


def read_prompts() -> dict[str, list[Prompt]]:
    """Return kind -> its prompts."""
    sets: dict[str, list[Prompt]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        kind = fields.pop("kind")
        sets.setdefault(kind, []).append(Prompt(kind, fields))
    return sets


def ask(port: int, prompt: Prompt, max_tokens: int, temperature: float, length: int | None) -> Streamed:
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
    body = {**prompt.fields, "max_tokens": max_tokens, "temperature": temperature, "seed": 1}
    if length is not None:
        body["num_draft_tokens"] = length
    path = "/v1/chat/completions" if "messages" in prompt.fields else "/v1/completions"
    with closing(HTTPConnection(HOST, port, timeout=TIMEOUT_S)) as connection:
        answer = ask_stream(connection, path, body)
    if not answer.decode_s:
        raise VerificationError(f"an answer cannot be timed: one chunk, for {prompt.fields}", "replace it")
    return answer


def ask_all(
    port: int,
    prompts: Sequence[Prompt],
    num_at_once: int,
    max_tokens: int,
    temperature: float,
    length: int | None,
) -> tuple[list[Streamed], float]:
    """Ask prompts, some at a time; returns the answers, and the seconds that all of them took."""
    started_s = time.monotonic()
    with ThreadPoolExecutor(num_at_once) as pool:
        asked = pool.map(lambda prompt: ask(port, prompt, max_tokens, temperature, length), prompts)
        answers = list(asked)
    return answers, time.monotonic() - started_s
