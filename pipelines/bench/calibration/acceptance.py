"""Measure how often the target accepts draft tokens, by class of their margin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from pipelines.errors import IncompatiblePairError
from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import DraftPlan, FixedDraftLength, Proposal
from pipelines.speculation.draft_length.survival import NUM_CLASSES, class_of
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.token_ids import TokenIds, count_accepted
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.time_left import TimeLeft

_DRAFT_LENGTH = 4
_TEMPERATURES = (0.0, 0.8)
_MAX_TOKENS = 64
# A round of a large target takes seconds, and shorter answers give enough observations.
_BUDGET_S = 6.0  # for each temperature
_LEAST_ROUNDS = 4  # of each answer, the first of which drafts nothing
# Pseudo-count: each class gets this many observations with the average acceptance rate.
_PRIOR_WEIGHT = 4.0


class _Recorder(FixedDraftLength):
    """A fixed draft length that records which draft tokens are accepted."""

    def __init__(self) -> None:
        super().__init__(_DRAFT_LENGTH)
        self.num_seen = np.zeros(NUM_CLASSES)
        self.num_accepted = np.zeros(NUM_CLASSES)

    def next_round(self, num_remaining: int) -> DraftPlan:
        return replace(super().next_round(num_remaining), keep_drafting=lambda: lambda margin: True)

    def note_refusal(self) -> None:
        """Go on: the draft may read the other prompts, which are recorded here too."""

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        if proposal.drafted is None or proposal.drafted.margins is None:
            return
        num_accepted = count_accepted(proposal.token_ids, token_ids)
        for index, margin in enumerate(proposal.drafted.margins[: len(token_ids)].tolist()):
            self.num_seen[class_of(margin)] += 1
            self.num_accepted[class_of(margin)] += index < num_accepted


class _Progress:
    """The share of the answers that is done, or of the time for them, whichever is larger.

    Args:
        num_prompts: Answers at each temperature.
        report: Called with a line every few seconds.
    """

    def __init__(self, num_prompts: int, report: Callable[[str], None]) -> None:
        self._total = num_prompts * _MAX_TOKENS
        self._progress = TimeLeft(
            len(_TEMPERATURES), report, lambda done: f"measuring acceptance: {done / len(_TEMPERATURES):.0%}"
        )
        self._num_begun, self._reported = -1, 0.0
        self._num_tokens, self._ends_s = 0, 0.0

    @property
    def is_late(self) -> bool:
        """Whether the time of this temperature is over."""
        return time.monotonic() > self._ends_s

    def begin(self) -> None:
        """Begin the next temperature."""
        self._num_begun += 1
        self._num_tokens, self._ends_s = 0, time.monotonic() + _BUDGET_S

    def advance(self, num_tokens: int) -> None:
        """Count output tokens."""
        self._num_tokens += num_tokens
        of_time = 1 - (self._ends_s - time.monotonic()) / _BUDGET_S
        share = min(max(self._num_tokens / self._total, of_time), 1.0)
        self._progress.advance(self._num_begun + share - self._reported)
        self._reported = self._num_begun + share


def measure_acceptance(
    draft: Executor,
    target: Executor,
    prompts: Sequence[TokenIds],
    report: Callable[[str], None] = lambda line: None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Answer prompts, greedy and sampled, and count accepted draft tokens.

    Answers that would take too long are left unfinished.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of typical prompts.
        report: Called with a line about the progress every few seconds.

    Returns:
        Acceptance rate and relative frequency of each class of margins.

    Raises:
        IncompatiblePairError: The draft proposed nothing.
    """
    recorder, watched = _Recorder(), WatchedDraft(draft.complete)
    progress = _Progress(len(prompts), report)
    loop = StepLoop((draft, target))
    loop.start()

    async def answer(number: int, prompt: TokenIds, temperature: float) -> None:
        request = GenerationRequest(
            f"calibration {number}",
            prompt,
            _MAX_TOKENS,
            sampling=SamplingParams(temperature=temperature, seed=number),
            end_ids=target.config.end_ids,
        )
        num_rounds = 0
        async with aclosing(speculate(request, watched, target.complete, recorder)) as rounds:  # type: ignore[type-var]
            async for part in rounds:
                num_rounds += 1
                progress.advance(len(part.token_ids))
                if num_rounds >= _LEAST_ROUNDS and progress.is_late:
                    break

    async def answer_all() -> None:
        for temperature in _TEMPERATURES:
            progress.begin()
            await asyncio.gather(*(answer(i, prompt, temperature) for i, prompt in enumerate(prompts)))

    try:
        loop.spawn(answer_all()).result()
    finally:
        loop.stop()
    if not recorder.num_seen.sum():
        raise IncompatiblePairError(
            "the draft proposed no token while the pair was calibrated",
            values=f"{len(prompts)} prompts; {watched.num_refusals} requests refused, "
            f"{watched.num_failures} failed",
            limit="the rates at which draft tokens are accepted need draft tokens",
            remedy="read the draft's warning, if there is one; use another draft, or prompts "
            "whose answers are longer",
        )
    overall = recorder.num_accepted.sum() / recorder.num_seen.sum()
    rates = (recorder.num_accepted + _PRIOR_WEIGHT * overall) / (recorder.num_seen + _PRIOR_WEIGHT)
    shares = (recorder.num_seen + 1) / (recorder.num_seen + 1).sum()
    return tuple(rates.tolist()), tuple(shares.tolist())
