"""A pair of tables in place of networks, behind real executors, whose answers have a known distribution."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc, softmax

from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.distribution.chi_square import CellTest
from tests.exact.engines import TableEngine
from tests.exact.races import agreement

VOCABULARY = Vocabulary((b"a", b"b", b"c"))
SIZE = VOCABULARY.size
NUM_DRAFT_TOKENS, NUM_TOKENS, TEMPERATURE = 2, 12, 0.8
"""Many rounds follow a full acceptance, after which a draft's cache may be one token behind."""

NUM_COUNTED = NUM_DRAFT_TOKENS + 1
"""First tokens of an answer, which make its cell: what one round can give."""

_PROMPT = np.array([1, 2], np.int32)
_SPREAD = 2.5  # between the largest and the smallest logit
_NUM_BLOCKS = 128
_AT_ONCE = 16
_LIMITS = ExecutorLimits(
    max_batch_size=16, max_num_tokens=96, max_seq_len=16, max_queue_size=64, num_kv_blocks=_NUM_BLOCKS
)
_MIN_VARIANCE = 100.0  # with less, a sum of coins is not normal as far out as the tests look


@cache
def logits_of(role: str, output: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the logits of a model after an output; the draft ranks all but the best token in reverse."""
    rng = np.random.default_rng([len(output), *output])
    levels = np.linspace(0.5, -0.5, SIZE) + rng.uniform(-0.15, 0.15, SIZE)
    best_first = rng.permutation(SIZE)
    logits = np.empty(SIZE, np.float32)
    logits[best_first if role == "target" else [best_first[0], *best_first[:0:-1]]] = _SPREAD * levels
    return logits


@cache
def law_of(role: str, output: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the probabilities of the token after an output."""
    return np.asarray(softmax(logits_of(role, output).astype(np.float64) / TEMPERATURE))


def joint_law() -> npt.NDArray[np.float64]:
    """Return the probabilities of the first tokens of the target's answers, [SIZE ** NUM_COUNTED]."""
    tokens = itertools.product(range(SIZE), repeat=NUM_COUNTED)
    return np.array(
        [
            np.prod([law_of("target", each[:place])[each[place]] for place in range(NUM_COUNTED)])
            for each in tokens
        ]
    )


def acceptance_of(output: tuple[int, ...], *, by_ratio: bool) -> float:
    """Return the probability that a draft token after an output is accepted.

    By the ratio rule it is the sum of min(p, q), and otherwise that of ``agreement``.
    """
    p, q = law_of("target", output), law_of("draft", output)
    return float(np.minimum(p, q).sum() if by_ratio else sum(agreement(p.tolist(), q.tolist())))


@dataclass
class Counts:
    """Counts over answers.

    Attributes:
        cells: How often each sequence of first tokens was answered, as in ``joint_law``.
        strata: For each index in a round, and whether the round follows a full acceptance: number of drafted
            tokens, of accepted ones, their expected number and its variance.
    """

    cells: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(SIZE**NUM_COUNTED, np.int64))
    strata: dict[tuple[int, bool], npt.NDArray[np.float64]] = field(default_factory=dict)

    def take(self, rounds: Sequence[Round], *, by_ratio: bool) -> None:
        """Count one answer."""
        output: tuple[int, ...] = ()
        is_after_full = False
        for part in rounds:
            new = tuple(part.token_ids.tolist())
            for index in range(min(part.num_draft_tokens, part.num_accepted_tokens + 1)):
                expected = acceptance_of((*output, *new[:index]), by_ratio=by_ratio)
                totals = np.array([1, index < part.num_accepted_tokens, expected, expected * (1 - expected)])
                stratum = index, is_after_full
                self.strata[stratum] = self.strata.get(stratum, np.zeros(4)) + totals
            output += new
            is_after_full = 0 < part.num_draft_tokens == part.num_accepted_tokens
        self.cells[int("".join(map(str, output[:NUM_COUNTED])), SIZE)] += 1

    def acceptance(self) -> CellTest:
        """Test whether every stratum accepted as many drafts as predicted.

        Each stratum adds the square of a normal deviate, with a noncentrality of at least n (2 d)^2 if the
        acceptance of its n drafts is off by d on average. ``num_samples`` is the smallest n.
        """
        tested = [totals for totals in self.strata.values() if totals[3] > _MIN_VARIANCE]
        statistic = sum((accepted - expected) ** 2 / variance for _, accepted, expected, variance in tested)
        num_samples = min(num_seen for num_seen, *_ in tested)
        return CellTest(statistic, len(tested), float(chdtrc(len(tested), statistic)), num_samples, 0.0)


def engine_of(role: str) -> TableEngine:
    """Return the engine of a model, which looks its logits up by the output."""
    return TableEngine(lambda context: logits_of(role, context[len(_PROMPT) :]), SIZE, role, _NUM_BLOCKS)


def count_served(seeds: range, *, by_ratio: bool) -> Counts:
    """Ask with every seed, many requests at once, executors that batch and cache."""
    draft, target = (Executor(engine_of(role), VOCABULARY, _LIMITS) for role in ("draft", "target"))
    counts = Counts()

    async def answer(seed: int) -> list[Round]:
        sampling = SamplingParams(temperature=TEMPERATURE, seed=seed)
        request = GenerationRequest("served", _PROMPT, NUM_TOKENS, sampling=sampling)
        length = FixedDraftLength(NUM_DRAFT_TOKENS)
        rounds = speculate(request, draft.complete, target.complete, length, use_draft_logits=by_ratio)
        return [part async for part in rounds]

    async def answer_all() -> None:
        for begin in range(seeds.start, seeds.stop, _AT_ONCE):
            wave = range(begin, min(begin + _AT_ONCE, seeds.stop))
            for rounds in await asyncio.gather(*map(answer, wave)):
                counts.take(rounds, by_ratio=by_ratio)

    loop = StepLoop([draft, target])
    loop.start()
    try:
        loop.spawn(answer_all()).result()
    finally:
        loop.stop()
    return counts
