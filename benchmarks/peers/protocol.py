"""Messages between the driver and a peer's program, and the main loop of such a program.

Messages are JSON lines on the program's stdin and stdout. The driver sends one request per line and waits for
one line in response: first ``LoadRequest``, whose response is ``Loaded``, then any number of ``RunRequest``,
whose response is ``Outcome``. If a request fails, the response is ``{"error": "..."}``. The program ends when
its stdin is closed.

This module uses only the standard library, because the interpreters of peers import it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO


@dataclass(frozen=True)
class LoadRequest:
    """Request to load a target, with or without a draft.

    Attributes:
        target: The target, in the format that this peer reads.
        draft: Folder of the draft; None for the target alone.
        num_draft_tokens: Draft tokens per round; 0 for the target alone.
        num_threads: Number of compute threads.
        max_concurrency: Most concurrent requests.
        max_seq_len: Most tokens of prompt and answer together.
        max_num_tokens: Most tokens of one step.
        end_ids: Tokens that end an answer.
        compile_properties: OpenVINO settings of our own engine, for a peer that runs OpenVINO too.
    """

    target: str
    draft: str | None
    num_draft_tokens: int
    num_threads: int
    max_concurrency: int
    max_seq_len: int
    max_num_tokens: int
    end_ids: tuple[int, ...]
    compile_properties: Mapping[str, str]


@dataclass(frozen=True)
class Loaded:
    """Response to a load request.

    Attributes:
        versions: Package -> version.
        notes: Notes for readers of the results, such as the type of the weights.
    """

    versions: Mapping[str, str]
    notes: str


@dataclass(frozen=True)
class RunRequest:
    """Request to answer prompts greedily.

    Attributes:
        prompts: Token ids of each prompt.
        max_tokens: Longest answer, tokens.
        num_at_once: Concurrent requests; when one ends, the next begins.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    num_at_once: int


@dataclass(frozen=True)
class Outcome:
    """Response to a run request.

    Attributes:
        answers: Output token ids for each prompt, possibly with an end token.
        seconds: Duration of each request.
        wall_s: Duration of all requests.
    """

    answers: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    wall_s: float


Request = LoadRequest | RunRequest
_REQUESTS: Mapping[str, type[Request]] = {"load": LoadRequest, "run": RunRequest}


def write_request(request: Request) -> str:
    """Return a request as a line without its line break."""
    name = next(name for name, kind in _REQUESTS.items() if isinstance(request, kind))
    return json.dumps({"request": name, **dataclasses.asdict(request)})


def read_request(line: str) -> Request:
    """Parse a request.

    Raises:
        ValueError, KeyError, TypeError: The line is not a request.
    """
    document: dict[str, Any] = json.loads(line)
    kind = _REQUESTS[document.pop("request")]
    if kind is RunRequest:
        document["prompts"] = tuple(map(tuple, document["prompts"]))
    else:
        document["end_ids"] = tuple(document["end_ids"])
    return kind(**document)


def read_outcome(document: Mapping[str, Any]) -> Outcome:
    """Parse the response to a ``RunRequest``.

    Raises:
        KeyError, TypeError, ValueError: The document is no such response.
    """
    return Outcome(
        tuple(tuple(int(token) for token in answer) for answer in document["answers"]),
        tuple(float(seconds) for seconds in document["seconds"]),
        float(document["wall_s"]),
    )


class LoadedPeer(Protocol):
    """An engine with its models in memory."""

    loaded: Loaded

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts."""


def serve(load: Callable[[LoadRequest], LoadedPeer]) -> int:
    """Process requests from stdin until it is closed, and return the exit code."""
    # Redirect stdout to stderr, because libraries print to it.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return process_requests(load, sys.stdin, answers)


def process_requests(load: Callable[[LoadRequest], LoadedPeer], lines: Iterable[str], answers: TextIO) -> int:
    """Process requests from a stream, like ``serve``."""
    peer: LoadedPeer | None = None
    for line in lines:
        try:
            request = read_request(line)
            answer: dict[str, Any]
            if isinstance(request, LoadRequest):
                peer = load(request)
                answer = dataclasses.asdict(peer.loaded)
            elif peer is None:
                answer = {"error": "no models are loaded"}
            else:
                answer = dataclasses.asdict(peer.run(request))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0
