"""Enumerates every answer of the real loop on real executors, with its exact probability.

The loop is replayed from its beginning for every sequence of engine answers. An engine call itself is
enumerated once, because its outcomes depend only on the request and on the noise that it touches. The
executor that answers it is reused, so later calls run with whatever its prefix cache holds by then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from pipelines.executor.executor import Executor
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import EngineCall, Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.text.vocabulary import Vocabulary
from tests.exact.branching import Branching, Draw, Interval, Noise, Outcome, Variable
from tests.exact.engines import Table, make_executor, run_at_once
from tests.exact.races import Cell
from tests.exact.reference import Answer


@dataclass(frozen=True)
class Call:
    """One engine call on a path through the loop; ``draws``: the tokens that were drawn to answer it."""

    role: str
    known: tuple[int, ...]
    num_wanted: int
    token_ids: tuple[int, ...]
    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class Way:
    """One path through the loop, to its end."""

    rounds: tuple[Round, ...]
    calls: tuple[Call, ...]
    probability: Fraction

    @property
    def answer(self) -> Answer:
        """Return output tokens and finish reason."""
        token_ids = [token_id for part in self.rounds for token_id in part.token_ids.tolist()]
        return tuple(token_ids), self.rounds[-1].finish_reason


class _Unanswered(Exception):
    """Raised when the loop asks for an engine answer that is not recorded yet."""

    def __init__(self, role: str, request: GenerationRequest) -> None:
        self.role = role
        self.request = request


@dataclass(frozen=True)
class _Known:
    """The outcomes of an engine call, and the prior knowledge of the noise that they depend on."""

    touched: dict[Variable, Cell | Interval | None]
    outcomes: list[Outcome[Output]]


class Exploration:
    """A draft and a target with tiny vocabularies, and everything that can happen between them.

    ``shares_noise``: whether draft and target share noise as in the real code. Otherwise their noise is
    independent, so that every draft path meets every choice of the target.
    """

    def __init__(
        self,
        branching: Branching,
        draft: Table,
        target: Table,
        vocabulary: Vocabulary,
        *,
        shares_noise: bool = True,
    ) -> None:
        self.branching = branching
        self._shares_noise = shares_noise
        self._tables = {"draft": draft, "target": target}
        self._vocabulary = vocabulary
        self._executors = self._make_executors()
        self._calls: dict[Hashable, list[_Known]] = {}

    def ways(
        self, request: GenerationRequest, num_draft_tokens: int, *, use_draft_logits: bool
    ) -> Iterator[Way]:
        """Return every path of ``speculate``; the probabilities sum to 1."""
        pending: list[tuple[Fraction, Noise, tuple[Output, ...], tuple[Call, ...]]] = [
            (Fraction(1), {}, (), ())
        ]
        total = Fraction(0)
        while pending:
            probability, noise, answers, calls = pending.pop()
            try:
                rounds = _replay(request, answers, num_draft_tokens, use_draft_logits)
            except _Unanswered as asked:
                for outcome in self._answers(asked.role, asked.request, noise):
                    call = _call(asked.role, request, asked.request, outcome.result, outcome.draws)
                    known = {**noise, **outcome.noise}
                    answered = (*answers, outcome.result)
                    pending.append((probability * outcome.probability, known, answered, (*calls, call)))
                continue
            total += probability
            yield Way(rounds, calls, probability)
        assert total == 1

    def ways_anew(
        self, request: GenerationRequest, num_draft_tokens: int, *, use_draft_logits: bool
    ) -> Iterator[Way]:
        """Return every path as ``ways`` does, but run each from the beginning on its own executors; slow."""

        def run() -> tuple[tuple[Round, ...], tuple[Call, ...]]:
            executors = self._make_executors()
            calls: list[Call] = []

            async def ask(role: str, step: GenerationRequest) -> Output:
                num_drawn = len(self.branching.drawn)
                answer = await executors[role].complete(step)
                calls.append(_call(role, request, step, answer, tuple(self.branching.drawn[num_drawn:])))
                return answer

            rounds = _run(
                request, partial(ask, "draft"), partial(ask, "target"), num_draft_tokens, use_draft_logits
            )
            return rounds, tuple(calls)

        assert self._shares_noise
        self.branching.owner = ""
        for outcome in self.branching.outcomes({}, run):
            rounds, calls = outcome.result
            yield Way(rounds, calls, outcome.probability)

    def alone(self, request: GenerationRequest) -> list[Outcome[Output]]:
        """Return every answer of the target without a loop and without a draft."""
        return self._answers("target", request, {})

    def _answers(self, role: str, request: GenerationRequest, noise: Noise) -> list[Outcome[Output]]:
        known = self._calls.setdefault((role, _key(request)), [])
        for entry in known:
            if all(noise.get(variable) == value for variable, value in entry.touched.items()):
                return entry.outcomes
        executor = self._executors[role]
        self.branching.owner = "" if self._shares_noise else role
        outcomes = self.branching.outcomes(noise, lambda: run_at_once(executor.complete(request)))
        touched = self.branching.touched
        for outcome in outcomes:  # untouched variables may have another state when these outcomes are reused
            for variable in set(outcome.noise) - touched:
                del outcome.noise[variable]
        known.append(_Known({variable: noise.get(variable) for variable in touched}, outcomes))
        return outcomes

    def _make_executors(self) -> dict[str, Executor]:
        return {role: make_executor(logits, self._vocabulary, role) for role, logits in self._tables.items()}


def _call(
    role: str, request: GenerationRequest, step: GenerationRequest, answer: Output, draws: tuple[Draw, ...]
) -> Call:
    known = tuple(step.input_ids[request.num_prompt_tokens :].tolist())
    return Call(role, known, step.max_tokens, tuple(answer.token_ids.tolist()), draws)


def _run(
    request: GenerationRequest,
    draft: EngineCall,
    target: EngineCall,
    num_draft_tokens: int,
    use_draft_logits: bool,
) -> tuple[Round, ...]:
    async def collect() -> tuple[Round, ...]:
        rounds = speculate(
            request, draft, target, FixedDraftLength(num_draft_tokens), use_draft_logits=use_draft_logits
        )
        return tuple([part async for part in rounds])

    return run_at_once(collect())


def _replay(
    request: GenerationRequest, answers: tuple[Output, ...], num_draft_tokens: int, use_draft_logits: bool
) -> tuple[Round, ...]:
    """Run the loop on recorded engine answers.

    Raises:
        _Unanswered: The loop needs one more answer.
    """
    left = iter(answers)

    async def answer(role: str, step: GenerationRequest) -> Output:
        found = next(left, None)
        if found is None:
            raise _Unanswered(role, step)
        return found

    return _run(
        request, partial(answer, "draft"), partial(answer, "target"), num_draft_tokens, use_draft_logits
    )


def _key(request: GenerationRequest) -> Hashable:
    """Return a hashable key of everything in a request."""

    def hashable(value: Any) -> Hashable:
        return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value

    return tuple(hashable(getattr(request, field.name)) for field in dataclasses.fields(request))
