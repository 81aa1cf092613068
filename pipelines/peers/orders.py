"""What the driver and a peer's program say to each other: JSON lines on the program's stdin and stdout.

The driver sends one order a line and waits for one line in answer: ``LoadOrder`` first, answered by
``Loaded``, then any number of ``RunOrder``, each answered by ``Outcome``. A program that cannot carry out
an order answers ``{"error": "..."}``. It ends when its stdin does.

Imported by interpreters that have nothing of ours installed: standard library only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LoadOrder:
    """Load a target, with or without its draft.

    Attributes:
        target: Folder of the target, in the form that this peer reads.
        draft: Folder of the draft; None for the target alone.
        num_draft_tokens: Draft tokens per round; 0 for the target alone.
        num_threads: Threads to compute with.
        max_num_at_once: Most requests that will run at once.
        max_seq_len: Prompt and answer together, tokens.
        max_num_tokens: Tokens of one step at most.
        end_ids: Tokens that end an answer.
        compile_properties: OpenVINO's settings of our own engine.
    """

    target: str
    draft: str | None
    num_draft_tokens: int
    num_threads: int
    max_num_at_once: int
    max_seq_len: int
    max_num_tokens: int
    end_ids: tuple[int, ...]
    compile_properties: Mapping[str, str]


@dataclass(frozen=True)
class Loaded:
    """A peer is ready.

    Attributes:
        versions: Package -> version of what computes.
        notes: What a reader of the figures should know, such as the type of the weights.
    """

    versions: Mapping[str, str]
    notes: str


@dataclass(frozen=True)
class RunOrder:
    """Answer prompts, greedily.

    Attributes:
        prompts: Token ids of each.
        max_tokens: Output tokens per answer at most.
        num_at_once: Answers that may be under way at any moment; the next begins when one ends.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    num_at_once: int


@dataclass(frozen=True)
class Outcome:
    """Answers in the order of the prompts.

    Attributes:
        answers: Output token ids of each; an end token may be the last.
        seconds: From the moment that each was begun to its last token.
        wall_s: From the first prompt to the last token of all.
    """

    answers: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    wall_s: float


Order = LoadOrder | RunOrder
_ORDERS: Mapping[str, type[Order]] = {"load": LoadOrder, "run": RunOrder}


def write_order(order: Order) -> str:
    """One line, without its end."""
    name = next(name for name, kind in _ORDERS.items() if isinstance(order, kind))
    return json.dumps({"order": name, **dataclasses.asdict(order)})


def read_order(line: str) -> Order:
    """The order on a line.

    Raises:
        ValueError, KeyError, TypeError: The line is none.
    """
    document: dict[str, Any] = json.loads(line)
    kind = _ORDERS[document.pop("order")]
    if kind is RunOrder:
        document["prompts"] = tuple(map(tuple, document["prompts"]))
    else:
        document["end_ids"] = tuple(document["end_ids"])
    return kind(**document)


def read_outcome(document: Mapping[str, Any]) -> Outcome:
    """The answer to a ``RunOrder``.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    return Outcome(
        tuple(tuple(int(token) for token in answer) for answer in document["answers"]),
        tuple(float(seconds) for seconds in document["seconds"]),
        float(document["wall_s"]),
    )
