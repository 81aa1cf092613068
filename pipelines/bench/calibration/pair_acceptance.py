"""Measure the acceptance of a pair of engines over prompts, with the real loop in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError, RequestRefusedError
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor
from pipelines.executor.step import Chunk, pack
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds
from pipelines.time_left import TimeLeft

_RESAMPLES = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class Answers:
    """The answers of a pair to the prompts, in order.

    Attributes:
        token_ids: Output tokens of each answer.
        statistics: Counts of each answer.
    """

    token_ids: tuple[TokenIds, ...]
    statistics: tuple[SpeculationStatistics, ...]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Return accepted draft tokens, drafted tokens, and rounds with drafts, int64 [prompts, 3]."""
        counts = [
            (each.total_accepted_draft_tokens, each.total_draft_tokens, each.num_drafting_rounds)
            for each in self.statistics
        ]
        return np.array(counts, np.int64)

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted over all prompts."""
        return acceptance_rate(self.counts)

    @property
    def mean_acceptance_length(self) -> float:
        """Return 1 + accepted / rounds with drafts over all prompts."""
        return mean_acceptance_length(self.counts)


def acceptance_rate(counts: npt.NDArray[np.int64]) -> float:
    """Return accepted / drafted of counts as in ``Answers``; NaN if nothing was drafted."""
    accepted, drafted, _ = counts.sum(axis=0)
    return float(accepted / drafted) if drafted else float("nan")


def mean_acceptance_length(counts: npt.NDArray[np.int64]) -> float:
    """Return 1 + accepted / rounds of counts as in ``Answers``; NaN if no round drafted."""
    accepted, _, rounds = counts.sum(axis=0)
    return float(1 + accepted / rounds) if rounds else float("nan")


def interval(
    counts: npt.NDArray[np.int64], statistic: Callable[[npt.NDArray[np.int64]], float]
) -> tuple[float, float]:
    """Return a 95 % percentile bootstrap interval over prompts.

    Prompts are resampled instead of tokens, because tokens of one answer are not independent. Source: Efron
    and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.

    Args:
        counts: One row per prompt.
        statistic: Function of a sample of the rows.
    """
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(counts), (_RESAMPLES, len(counts)))
    values = [statistic(counts[draw]) for draw in draws]
    low, high = np.nanquantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def answer_prompts(
    draft: Executor,
    target: Executor,
    prompts: Sequence[TokenIds],
    *,
    num_draft_tokens: int,
    max_tokens: int,
    temperature: float,
    report: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Answer all prompts concurrently; the seed of prompt i is i, so that output depends only on the target.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of the prompts.
        num_draft_tokens: Draft tokens per round.
        max_tokens: Longest answer, tokens.
        temperature: 0 for greedy; otherwise draft and target share noise.
        report: Called with a line about the progress every few seconds.

    Raises:
        EngineFailedError: A step failed, of the draft or of the target.
    """
    total = len(prompts) * max_tokens
    progress = TimeLeft(total, report, lambda done: f"answering prompts: {done / total:.0%}")
    statistics = tuple(SpeculationStatistics(max_draft_len=num_draft_tokens) for _ in prompts)
    loop = StepLoop((draft, target))
    loop.start()
    failures: list[EngineFailedError] = []

    async def propose(request: GenerationRequest) -> Output:
        try:
            return await draft.complete(request)
        except EngineFailedError as error:
            if not isinstance(error, RequestRefusedError):
                failures.append(error)  # the loop goes on without the draft, and fewer tokens are accepted
            raise

    async def answer(number: int) -> TokenIds:
        request = GenerationRequest(
            f"prompt {number}",
            prompts[number],
            max_tokens,
            sampling=SamplingParams(temperature=temperature, seed=number),
            end_ids=target.config.end_ids,
        )
        parts = []
        async for part in speculate(request, propose, target.complete, FixedDraftLength(num_draft_tokens)):
            statistics[number].add_round(part)
            parts.append(part.token_ids)
            progress.advance(len(part.token_ids))
        answer_ids = np.concatenate(parts)
        progress.advance(max_tokens - len(answer_ids))  # it may have ended early
        return answer_ids

    async def answer_all() -> list[TokenIds]:
        return await asyncio.gather(*(answer(number) for number in range(len(prompts))))

    try:
        token_ids = tuple(loop.spawn(answer_all()).result())
    finally:
        loop.stop()
    if failures:
        raise failures[0]
    return Answers(token_ids, statistics)


def same_choices(
    engines: Mapping[str, Engine], reference: str, prompts: Sequence[TokenIds], texts: Sequence[TokenIds]
) -> dict[str, npt.NDArray[np.int64]]:
    """Count where engines choose the same next token as a reference engine, on the reference's own text.

    Args:
        engines: Engines by name; each has KV blocks for the longest text.
        reference: Name of the engine that wrote the texts.
        prompts: Token ids of the prompts.
        texts: Greedy output of the reference after each prompt.

    Returns:
        Name -> int64 [prompts, 2]: number of positions with the same choice, and of all positions.
    """
    chosen = {name: _choices(engine, prompts, texts) for name, engine in engines.items()}
    return {
        name: np.array(
            [
                ((mine == theirs).sum(), len(theirs))
                for mine, theirs in zip(found, chosen[reference], strict=True)
            ],
            np.int64,
        )
        for name, found in chosen.items()
    }


def _choices(
    engine: Engine, prompts: Sequence[TokenIds], texts: Sequence[TokenIds]
) -> list[npt.NDArray[np.intp]]:
    """Return the most likely token at each position of each text."""
    found = []
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = np.concatenate([prompt, text])[:-1].astype(np.int32)
        num_blocks = -(-len(tokens) // engine.config.kv_block_size)
        chunk = Chunk(tokens, 0, range(1, 1 + num_blocks), as_rows=False, num_logits=len(text))
        found.append(engine.step(pack([chunk], engine.config.kv_block_size)).argmax(axis=1))
    return found
