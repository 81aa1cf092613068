"""Request many unseeded answers to the same prompts from a candidate and from the target alone."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.distribution.sequence_tests import SamplePair, TokenSequence

NUM_PROMPTS = 8
NUM_TOKENS = 3
"""Tokens of an answer."""

TOP_K = 4
"""Makes the distribution narrow, so that every token and the prefixes of later positions are frequent enough.
Of all tokens most would be merged as rare."""

_ENDED = -1  # stands for tokens after the end of an answer


@dataclass(frozen=True)
class Drawn:
    """One answer: its first tokens, and its seed if the server returned it."""

    token_ids: TokenSequence
    seed: int | None = None


@dataclass(frozen=True)
class Sample:
    """Answers of one model by one rule.

    Attributes:
        answers: For each prompt, in the same order, its answers.
        errors: Messages in place of missing answers.
    """

    answers: tuple[tuple[Drawn, ...], ...]
    errors: tuple[str, ...] = ()

    @property
    def smallest(self) -> int:
        """Least number of answers to any prompt."""
        return min(map(len, self.answers))

    def beside(self, other: Sample) -> list[SamplePair]:
        """Pair the tokens of these answers with those of others, prompt by prompt."""
        return list(zip(self._tokens, other._tokens, strict=True))

    @property
    def _tokens(self) -> list[list[TokenSequence]]:
        return [[answer.token_ids for answer in to_prompt] for to_prompt in self.answers]


@dataclass(frozen=True)
class Draws:
    """Answers of all models.

    Attributes:
        candidates: Name -> answers that are compared with those of the target alone.
        target: Answers of the target alone.
        again: As many answers of it again.
        num_replayed: Number of answers that were requested again with the returned seed.
        num_replays_different: Number of these that differed.
    """

    candidates: Mapping[str, Sample]
    target: Sample
    again: Sample
    num_replayed: int = 0
    num_replays_different: int = 0

    @property
    def seeds(self) -> list[int | None]:
        """Seeds that the server returned; None for answers without one."""
        samples = (*self.candidates.values(), self.target, self.again)
        return [answer.seed for sample in samples for to_prompt in sample.answers for answer in to_prompt]

    def seed_faults(self) -> list[str]:
        """Return faults that the returned seeds reveal.

        Two of 20,000 seeds of 53 random bits are equal once in 45 million runs.
        """
        faults = []
        seen = Counter(seed for seed in self.seeds if seed is not None)
        num_repeated = sum(count - 1 for count in seen.values())
        if num_repeated:
            faults.append(f"{num_repeated} of {len(self.seeds)} answers came with a seed used before")
        if self.num_replays_different:
            faults.append(
                f"{self.num_replays_different} of {self.num_replayed} answers differed when requested again "
                "with the seed that the server had returned"
            )
        return faults

    def seeds_seen(self) -> str:
        """Describe the seeds in a sentence."""
        seeds = self.seeds
        if num_lacking := seeds.count(None):
            return f"Not checked: {num_lacking} answers came without their seed."
        return f"{len(set(seeds))} different seeds in {len(seeds)} answers; {self.num_replayed} replayed."

    def as_document(self) -> dict[str, object]:
        """Return the counts, ready for JSON."""
        return {
            "prompts": len(self.target.answers),
            "seeds_returned": sum(seed is not None for seed in self.seeds),
            "seeds_different": len(set(self.seeds) - {None}),
            "answers_replayed": self.num_replayed,
            "replays_different": self.num_replays_different,
        }


def draw(
    name: str,
    ask: Callable[[str, int], Drawn],
    models: Sequence[str],
    num_prompts: int,
    num_answers: int,
    num_at_once: int,
    on_answer: OnAnswer,
) -> dict[str, Sample]:
    """Request all answers, with the models mixed so that each has the same load.

    Args:
        name: What is asked, for progress.
        ask: Asks a model the prompt with an index.
        models: Names of the models.
        num_prompts: Number of prompts.
        num_answers: Number of answers of each model to each prompt.
        num_at_once: Number of concurrent requests.
        on_answer: Called after each answer.
    """
    slots = [(model, index) for index in range(num_prompts) for model in models for _ in range(num_answers)]
    random.Random(0).shuffle(slots)
    outcomes = ask_each(name, lambda slot: ask(*slot), slots, num_at_once, on_answer)
    drawn: dict[tuple[str, int], list[Drawn]] = defaultdict(list)
    errors: dict[str, list[str]] = defaultdict(list)
    for (model, index), outcome in zip(slots, outcomes, strict=True):
        if isinstance(outcome, DraftproofError):
            errors[model].append(str(outcome))
        else:
            drawn[model, index].append(outcome)
    return {
        model: Sample(tuple(tuple(drawn[model, index]) for index in range(num_prompts)), tuple(errors[model]))
        for model in models
    }


def padded(token_ids: Sequence[int]) -> TokenSequence:
    """Return the first tokens of an answer, followed by a mark for each one that it lacks."""
    return (*token_ids[:NUM_TOKENS], *[_ENDED] * (NUM_TOKENS - len(token_ids)))


COUPLED, RATIO = "coupled rule", "ratio rule"
_TARGET, _TARGET_AGAIN = "target alone", "target alone, again"


def draw_from_own(
    prompts: Sequence[Prompt],
    num_draft_tokens: int,
    generate: Callable[[CompletionRequest, str], Generation],
    num_answers: int,
    on_answer: OnAnswer = lambda name, num_done, num_all: None,
    *,
    rules: Sequence[str] = (COUPLED, RATIO),
    num_at_once: int = 8,
) -> Draws:
    """Request unseeded answers from ``generate`` by each rule of acceptance and twice from the target alone.

    For each prompt the target alone also replays an answer of the coupled rule with the seed that it had.

    Args:
        prompts: Prompts, at least one.
        num_draft_tokens: Draft length, less than ``NUM_TOKENS``, so that a round can reject, draw a residual
            and add a bonus token within the compared tokens.
        generate: Sends a request to a model.
        num_answers: Number of answers per prompt and rule.
        on_answer: Called after each answer.
        rules: Rules that are compared with the target alone.
        num_at_once: Number of concurrent requests.
    """

    def ask(rule: str, index: int, seed: int | None = None) -> Drawn:
        prompt, drafts = prompts[index], rule in rules
        request = CompletionRequest(
            prompt.text,
            max_tokens=NUM_TOKENS,
            temperature=1.0,
            top_k=TOP_K,
            seed=seed,
            num_draft_tokens=num_draft_tokens if drafts else None,
            use_draft_logits=rule == RATIO,
            **prompt.switches,
        )
        answer = generate(request, SPECULATIVE if drafts else TARGET_ALONE)
        return Drawn(padded(answer.output_ids), answer.seed)

    models = (*rules, _TARGET, _TARGET_AGAIN)
    samples = draw("unseeded answers", ask, models, len(prompts), num_answers, num_at_once, on_answer)
    firsts = (
        next((answer for answer in to_prompt if answer.seed is not None), None)
        for to_prompt in (samples[COUPLED].answers if COUPLED in samples else ())
    )
    chosen = [(index, first) for index, first in enumerate(firsts) if first is not None]
    replays = ask_each(
        "replayed answers", lambda pair: ask(_TARGET, pair[0], pair[1].seed), chosen, num_at_once, on_answer
    )
    equal = [
        first.token_ids == replay.token_ids
        for (_, first), replay in zip(chosen, replays, strict=True)
        if isinstance(replay, Drawn)
    ]
    return Draws(
        {rule: samples[rule] for rule in rules},
        samples[_TARGET],
        samples[_TARGET_AGAIN],
        len(equal),
        equal.count(False),
    )
