"""Two models that are tables: logits for every output so far, so that all distributions are known exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.executor.request import AnswerRequest
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import EngineCall, Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.vocabulary import Vocabulary

Ranks = Callable[[np.ndarray], np.ndarray]

PROMPT = np.array([1, 2], np.int32)
_CERTAIN = 60.0


def reverse(best_first: np.ndarray) -> np.ndarray:
    """Reverse the target's ranking: most drafts are rejected."""
    return best_first[::-1]


def rotate(best_first: np.ndarray) -> np.ndarray:
    """Move the target's least likely letter to the front; the order of the rest stays.

    The recovered tokens are then letters that the draft might have drawn, too, in other proportions. This
    exposes noise that draft and target wrongly share; with ``reverse`` it hardly shows.
    """
    return np.roll(best_first, 1)


def agree(best_first: np.ndarray) -> np.ndarray:
    """Keep the target's favourite and reverse the rest: most drafts are accepted."""
    return np.concatenate((best_first[:1], best_first[:0:-1]))


class Table:
    """The logits of one model for a vocabulary of a few letters.

    Args:
        spread: The difference between the largest and the smallest logit.
        ranks: A permutation of the target's ranking, best first: letter ``ranks[i]`` of that ranking has this
            model's i-th largest logit. None for the target itself.
        first_is_certain: The first output token is letter 0. It is chosen before anything is drafted, so that
            the cells of a test cover only the tokens of the rounds.
    """

    def __init__(
        self, vocab_size: int, spread: float, ranks: Ranks | None, *, first_is_certain: bool
    ) -> None:
        self.vocab_size = vocab_size
        self.vocabulary = Vocabulary(tuple(bytes([ord("a") + i]) for i in range(vocab_size)))
        self.completions = Completions(self.vocabulary)
        self._spread = spread
        self._ranks = ranks
        self._first_is_certain = first_is_certain
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def row(self, output: Sequence[int]) -> np.ndarray:
        """Return the logits, float32 [vocab_size], after the prompt and ``output``."""
        key = tuple(output)
        if key not in self._rows:
            self._rows[key] = self._make(key)
        return self._rows[key]

    def _make(self, output: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([len(output), *output])
        levels = np.linspace(0.5, -0.5, self.vocab_size) + rng.uniform(-0.15, 0.15, self.vocab_size)
        best_first = rng.permutation(self.vocab_size)
        logits = np.empty(self.vocab_size)
        logits[best_first if self._ranks is None else self._ranks(best_first)] = self._spread * levels
        if self._first_is_certain and not output:
            logits[0] = _CERTAIN
        return logits.astype(np.float32)

    def engine(self) -> EngineCall:
        """Return the table behind the executor's own decisions, without scheduler, cache and event loop."""

        async def call(request: GenerationRequest) -> Output:
            state = AnswerRequest(request, self.vocabulary, self._sampler(request))
            outputs: list[Output] = []
            while not outputs or not outputs[-1].is_final:
                known = state.known_tokens[len(PROMPT) :].tolist()
                draft_ids = state.draft_ids.tolist()
                rows = [self.row(known + draft_ids[:count]) for count in range(len(draft_ids) + 1)]
                outputs.append(state.take_logits(np.stack(rows), num_fed=state.num_tokens + len(draft_ids)))
            return join(outputs)

        return call

    def _sampler(self, request: GenerationRequest) -> Sampler:
        output_ids = request.input_ids[len(PROMPT) :].tolist()
        bans = BadWords(request.bad_words, self.completions, output_ids) if request.bad_words else None
        return Sampler(request, self.vocab_size, bans)


def join(outputs: Sequence[Output]) -> Output:
    """Join the steps of one answer, as ``Executor.complete`` does."""
    logits = [output.generation_logits for output in outputs if output.generation_logits is not None]
    return Output(
        np.concatenate([output.token_ids for output in outputs]),
        outputs[-1].finish_reason,
        is_final=True,
        generation_logits=np.concatenate(logits) if logits else None,
    )


@dataclass(frozen=True)
class Pair:
    """A request, asked with many seeds, and the two models that answer it.

    ``rejected``: the range that the rate of rejected drafts must lie in.
    """

    name: str
    vocab_size: int
    num_draft_tokens: int
    request: GenerationRequest
    spread: float
    ranks: Ranks = reverse
    rejected: tuple[float, float] = (0.6, 0.8)
    first_is_certain: bool = True

    @property
    def certain(self) -> tuple[int, ...]:
        """The number of output tokens that are the same in every answer."""
        return (0,) if self.first_is_certain else ()

    @property
    def num_counted(self) -> int:
        """The number of tokens that make an answer's cell: K + 1, what one round can give."""
        return self.num_draft_tokens + 1

    def tables(self) -> tuple[Table, Table]:
        """Return the tables of draft and target."""
        draft, target = (
            Table(self.vocab_size, self.spread, ranks, first_is_certain=self.first_is_certain)
            for ranks in (self.ranks, None)
        )
        return draft, target

    def with_seed(self, seed: int) -> GenerationRequest:
        """Return the request of one sample."""
        return replace(self.request, sampling=replace(self.request.sampling, seed=seed))


def answers(pair: Pair, use_draft_logits: bool, seeds: range, take: Callable[[list[Round]], None]) -> None:
    """Answer the request once per seed with the real loop, and pass on each answer's rounds."""
    draft, target = (table.engine() for table in pair.tables())

    async def answer(seed: int) -> list[Round]:
        rounds = speculate(
            pair.with_seed(seed),
            draft,
            target,
            FixedDraftLength(pair.num_draft_tokens),
            use_draft_logits=use_draft_logits,
        )
        return [part async for part in rounds]

    async def answer_all() -> None:
        for seed in seeds:
            take(await answer(seed))

    asyncio.run(answer_all())
