"""Two models that are tables: logits for every output so far, so that all laws are known exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.executor.sequence import Sequence as RequestState
from pipelines.speculation.draft_plan import FixedDraftLength
from pipelines.speculation.loop import EngineCall, Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampler import Sampler
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.vocabulary import Vocabulary

Ranks = Callable[[np.ndarray], np.ndarray]

PROMPT = np.array([1, 2], np.int32)
_CERTAIN = 60.0


def reverse(best_first: np.ndarray) -> np.ndarray:
    """The draft likes best what the target likes least: most drafts are rejected."""
    return best_first[::-1]


def rotate(best_first: np.ndarray) -> np.ndarray:
    """The draft likes best what the target likes least, and agrees with it on the order of the rest.

    What is recovered then are letters that the draft might well have drawn, in other proportions: noise
    that draft and target should not share shows. With ``reverse`` it hardly does.
    """
    return np.roll(best_first, 1)


def agree(best_first: np.ndarray) -> np.ndarray:
    """The draft likes best what the target likes best, and reverses the rest: most drafts are accepted."""
    return np.concatenate((best_first[:1], best_first[:0:-1]))


class Table:
    """Logits of one model for a vocabulary of a few letters.

    Args:
        vocab_size: Letters.
        spread: Distance between the best and the worst logit.
        ranks: Of the letters, best first, those of the target: letter ``ranks[i]`` of that list has this
            model's i-th largest logit. None for the target itself.
        first_is_certain: The first output token is letter 0. It is chosen before anything is drafted; the
            cells of a test are then left to the tokens of the rounds.
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
        """Logits float32 [vocab_size] after the prompt and ``output``."""
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
        """The table behind the executor's own decisions, without scheduler, cache and event loop."""

        async def call(request: GenerationRequest) -> Output:
            state = RequestState.begin(request, self.vocabulary, self._sampler(request))
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
    """One answer of several steps, as ``Executor.complete`` joins them."""
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

    Attributes:
        name: In reports.
        vocab_size: Letters of both models.
        num_draft_tokens: K.
        request: All but the seed.
        spread: Of the tables' logits.
        ranks: Of the draft.
        rejected: Between which rates its drafts are rejected.
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
        """Output tokens that are the same in every answer."""
        return (0,) if self.first_is_certain else ()

    @property
    def num_counted(self) -> int:
        """Tokens of an answer that make its cell: K + 1, what one round can give."""
        return self.num_draft_tokens + 1

    def tables(self) -> tuple[Table, Table]:
        """Draft and target."""
        draft, target = (
            Table(self.vocab_size, self.spread, ranks, first_is_certain=self.first_is_certain)
            for ranks in (self.ranks, None)
        )
        return draft, target

    def with_seed(self, seed: int) -> GenerationRequest:
        """The request of one sample."""
        return replace(self.request, sampling=replace(self.request.sampling, seed=seed))


def answers(
    pair: Pair,
    use_draft_logits: bool,
    seeds: range,
    take: Callable[[list[Round]], None],
) -> None:
    """Answer the request once per seed by the real loop and hand the rounds of each answer over."""
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
