"""Request many unseeded answers to the same prompts from ``generate`` and from the target alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.client.workers import Job, Workers
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.distribution.sequence_tests import SamplePair, TokenSequence

_ENDED = -1  # stands for tokens after the end of an answer


@dataclass(frozen=True)
class SampledModel:
    """A model and its rule of acceptance."""

    name: str
    model: str
    use_draft_logits: bool = False


COUPLED = SampledModel("coupled rule", SPECULATIVE)
RATIO = SampledModel("ratio rule", SPECULATIVE, use_draft_logits=True)
TARGET = SampledModel("target alone", TARGET_ALONE)
TARGET_AGAIN = SampledModel("target alone, again", TARGET_ALONE)


@dataclass(frozen=True)
class DrawPlan:
    """Requests for unseeded answers.

    Attributes:
        prompts: Prompts, at least one.
        candidates: Arms that are compared with the target alone.
        num_answers: Number of answers per prompt and arm. With 500 a correct server was once barely
            inconclusive.
        num_tokens: Number of output tokens that are compared.
        num_draft_tokens: Draft length, at most ``num_tokens - 1``, so that a round can reject, draw a
            residual and add a bonus token within the compared tokens.
        temperature: Temperature above 0.
        top_k: A small value makes the distribution narrow, so that every token and the prefixes of later
            positions are frequent enough. With 0, for all tokens, most would be merged as rare.
        num_at_once: Number of concurrent requests.
    """

    prompts: tuple[Prompt, ...]
    candidates: tuple[SampledModel, ...] = (COUPLED, RATIO)
    num_answers: int = 1000
    num_tokens: int = 3
    num_draft_tokens: int = 2
    temperature: float = 1.0
    top_k: int = 4
    num_at_once: int = 8


@dataclass(frozen=True)
class Draws:
    """Answers of all arms.

    Attributes:
        candidates: Arms that are compared with the target alone.
        samples: SampledModel -> for each prompt, in the same order, its answers.
        errors: SampledModel -> error messages of missing answers.
        seeds: Seeds that the server returned; None for answers without one.
        num_replayed: Number of answers that were requested again with the returned seed.
        num_replays_different: Number of these that differed.
    """

    candidates: tuple[SampledModel, ...]
    samples: Mapping[SampledModel, Sequence[Sequence[TokenSequence]]]
    errors: Mapping[SampledModel, Sequence[str]]
    seeds: tuple[int | None, ...]
    num_replayed: int = 0
    num_replays_different: int = 0

    def smallest_sample(self, *candidates: SampledModel) -> int:
        """Return the least number of answers of any prompt, from the target alone or the candidates."""
        arms = (*candidates, TARGET, TARGET_AGAIN)
        return min(len(sample) for arm in arms for sample in self.samples[arm])

    def errors_of(self, candidate: SampledModel) -> list[str]:
        """Return the error messages of missing answers of a candidate or the target alone."""
        return [error for arm in (candidate, TARGET, TARGET_AGAIN) for error in self.errors[arm]]

    def against_target(self, candidate: SampledModel) -> list[SamplePair]:
        """Pair a candidate's answers with the target's, prompt by prompt."""
        return list(zip(self.samples[candidate], self.samples[TARGET], strict=True))

    @property
    def target_against_itself(self) -> list[SamplePair]:
        """Both samples of the target alone."""
        return self.against_target(TARGET_AGAIN)

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
        num_returned = sum(seed is not None for seed in self.seeds)
        if num_returned < len(self.seeds):
            return f"Not checked: {len(self.seeds) - num_returned} answers came without their seed."
        num_different = len(set(self.seeds))
        return f"{num_different} different seeds in {num_returned} answers; {self.num_replayed} replayed."

    def as_document(self) -> dict[str, object]:
        """Return the counts, ready for JSON."""
        return {
            "prompts": len(self.samples[TARGET]),
            "seeds_returned": sum(seed is not None for seed in self.seeds),
            "seeds_different": len(set(self.seeds) - {None}),
            "answers_replayed": self.num_replayed,
            "replays_different": self.num_replays_different,
        }


def draw(
    plan: DrawPlan,
    workers: Workers,
    on_answer: Callable[[int, int], None] = lambda num_done, num_all: None,
) -> Draws:
    """Request all answers, with the arms mixed so that each has the same load.

    Args:
        plan: Requests to make.
        workers: Workers, at least ``num_at_once``.
        on_answer: Called with the number of answers so far and in all.
    """
    arms = (*plan.candidates, TARGET, TARGET_AGAIN)
    slots = [
        (index, arm) for index in range(len(plan.prompts)) for arm in arms for _ in range(plan.num_answers)
    ]
    random.Random(0).shuffle(slots)
    num_done = 0

    def count(_: object) -> None:
        nonlocal num_done
        num_done += 1
        on_answer(num_done, len(slots))

    jobs = [_job(plan, index, arm) for index, arm in slots]
    answers = workers.run(jobs, plan.num_at_once, count)
    samples: dict[SampledModel, list[list[TokenSequence]]] = {arm: [[] for _ in plan.prompts] for arm in arms}
    had = [answer for answer in answers if isinstance(answer, Generation)]
    errors: dict[SampledModel, list[str]] = {arm: [] for arm in arms}
    for (index, arm), answer in zip(slots, answers, strict=True):
        if isinstance(answer, Generation):
            samples[arm][index].append(padded(answer.output_ids, plan.num_tokens))
        else:
            errors[arm].append(str(answer))
    num_replayed, num_different = _replay(plan, workers, slots, answers)
    return Draws(
        candidates=plan.candidates,
        samples=samples,
        errors=errors,
        seeds=tuple(answer.seed for answer in had),
        num_replayed=num_replayed,
        num_replays_different=num_different,
    )


def _replay(
    plan: DrawPlan,
    workers: Workers,
    slots: Sequence[tuple[int, SampledModel]],
    answers: Sequence[Generation | DraftproofError],
) -> tuple[int, int]:
    """Request an answer of the target alone for each prompt, with a seed that the coupled rule returned.

    Returns:
        Number of answers that were compared, and number of those that differ.
    """
    chosen: dict[int, Generation] = {}
    for (index, arm), answer in zip(slots, answers, strict=True):
        if arm == COUPLED and isinstance(answer, Generation) and answer.seed is not None:
            chosen.setdefault(index, answer)
    jobs = [_job(plan, index, TARGET, chosen[index].seed) for index in chosen]
    replays = workers.run(jobs, plan.num_at_once)
    pairs = [
        (first, second)
        for first, second in zip(chosen.values(), replays, strict=True)
        if isinstance(second, Generation)
    ]
    return len(pairs), sum(first.output_ids != second.output_ids for first, second in pairs)


def _job(plan: DrawPlan, index: int, arm: SampledModel, seed: int | None = None) -> Job:
    prompt = plan.prompts[index]
    request = CompletionRequest(
        prompt.text,
        max_tokens=plan.num_tokens,
        temperature=plan.temperature,
        top_k=plan.top_k,
        seed=seed,
        num_draft_tokens=plan.num_draft_tokens if arm.model == SPECULATIVE else None,
        use_draft_logits=arm.use_draft_logits,
        **prompt.switches,
    )
    return Job(request, arm.model)


def padded(token_ids: TokenSequence, length: int) -> TokenSequence:
    """Return an answer's tokens, followed by a mark for each one that it lacks."""
    return (*token_ids, *[_ENDED] * (length - len(token_ids)))
