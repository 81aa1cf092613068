"""Computes logits with the engine of a small network, and compares them."""

from __future__ import annotations

import numpy as np

from benchmarks.quality.engines import Logits, TokenIds, log_softmax, piece, step
from pipelines.executor.engine import Engine
from pipelines.executor.step import NO_SLOT, Chunk

EXACT = 1e-4
"""Largest difference between float32 logits; those of our networks are at most about 130."""

_NUM_PROMPT, _NUM_ROWS = 130, 20
_OTHER_CUTS = 2, 63, 148
_OTHER = Chunk(np.arange(7, dtype=np.int32), 20, tuple(range(10, 14)), True, num_logits=7, slot=NO_SLOT)


def prompt_logits(engine: Engine, ids: TokenIds, num_first: int) -> Logits:
    """Compute the logits of a text in two chunks, [tokens, vocab].

    Args:
        engine: The engine.
        ids: The text; at most 544 tokens.
        num_first: Tokens of the first chunk.
    """
    rest = len(ids) - num_first
    first = piece(engine, ids[:num_first], 0, num_first, is_decode=False)
    second = piece(engine, ids[num_first:], num_first, rest, is_decode=False)
    return np.concatenate([step(engine, first), step(engine, second)])


def decoded_rows(engine: Engine, ids: TokenIds, num_prompt: int, rows: int, *others: Chunk) -> Logits:
    """Compute the logits after a prompt, as verification does: so many tokens a step, each a row.

    Args:
        engine: The engine.
        ids: Prompt and further tokens, whose number is a multiple of ``rows``.
        num_prompt: Tokens of the prompt.
        rows: Rows of each step.
        *others: What else each step computes.
    """
    step(engine, piece(engine, ids[:num_prompt], 0, 1, is_decode=False))
    found = []
    for start in range(num_prompt, len(ids), rows):
        chunk = piece(engine, ids[start : start + rows], start, rows, is_decode=True)
        found.append(step(engine, chunk, *others)[:rows])
    return np.concatenate(found)


def greedy_tokens(engine: Engine, prompt: TokenIds, count: int) -> list[int]:
    """Decode greedily, one row a step."""
    logits = step(engine, piece(engine, prompt, 0, 1, is_decode=False))
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        last = np.array(tokens[-1:], np.int32)
        chunk = piece(engine, last, len(prompt) + len(tokens) - 1, 1, is_decode=True)
        tokens.append(int(step(engine, chunk)[0].argmax()))
    return tokens


def mean_kl(reference: Logits, logits: Logits) -> float:
    """Return the mean over positions of KL(reference || logits), nats."""
    p, q = log_softmax(reference), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def count_rows_differing(engine: Engine, ids: TokenIds) -> int:
    """Count positions of 150 tokens whose bits depend on what is computed beside them, or in which steps.

    Rows of a verification are compared with plain decoding, and a prompt with the same prompt cut elsewhere.
    """
    ids = ids[: _NUM_PROMPT + _NUM_ROWS]
    prompt, *cut_elsewhere = (prompt_logits(engine, ids, first) for first in (_NUM_PROMPT, *_OTHER_CUTS))
    alone = decoded_rows(engine, ids, _NUM_PROMPT, 1)
    together = [decoded_rows(engine, ids, _NUM_PROMPT, rows, _OTHER) for rows in (2, 5, 10)]
    pairs = [*((alone, rows) for rows in together), *((prompt, chunks) for chunks in cut_elsewhere)]
    return int(sum((one != other).any(axis=1).sum() for one, other in pairs))
