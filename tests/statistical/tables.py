"""Two models that are tables: logits for every output so far, so that all laws are known exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.executor.sequence import Sequence as RequestState
from pipelines.speculation.loop import EngineCall, Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampler import Sampler
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.vocabulary import Vocabulary

PROMPT = np.array([1, 2], np.int32)
_CERTAIN = 60.0


class Table:
    """Logits of one model for a vocabulary of a few letters.

    Args:
        vocab_size: Letters.
        spread: Distance between the best and the worst logit.
        is_draft: Ranks every letter the other way round than the target does, so most drafts are rejected.
        first_is_certain: The first output token is letter 0. It is chosen before anything is drafted; the
            cells of a test are then left to the tokens of the rounds.
    """

    def __init__(self, vocab_size: int, spread: float, *, is_draft: bool, first_is_certain: bool) -> None:
        self.vocab_size = vocab_size
        self.vocabulary = Vocabulary(tuple(bytes([ord("a") + i]) for i in range(vocab_size)))
        self.completions = Completions(self.vocabulary)
        self._spread = spread
        self._sign = -1 if is_draft else 1
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
        levels = np.linspace(-0.5, 0.5, self.vocab_size) + rng.uniform(-0.15, 0.15, self.vocab_size)
        logits = self._sign * self._spread * rng.permutation(levels)
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
        spread: Of the tables' logits; chosen so that about 70 % of the drafts are rejected.
    """

    name: str
    vocab_size: int
    num_draft_tokens: int
    request: GenerationRequest
    spread: float
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
            Table(self.vocab_size, self.spread, is_draft=is_draft, first_is_certain=self.first_is_certain)
            for is_draft in (True, False)
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
            pair.with_seed(seed), draft, target, pair.num_draft_tokens, use_draft_logits=use_draft_logits
        )
        return [part async for part in rounds]

    async def answer_all() -> None:
        for seed in seeds:
            take(await answer(seed))

    asyncio.run(answer_all())
