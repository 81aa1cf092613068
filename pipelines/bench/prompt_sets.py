"""Prompt sets of the benchmark, with their sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.bench.generated_prompts import adversarial_requests, repetitive_texts
from pipelines.client import CompletionRequest
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary

_SEED = 2026  # for generated prompts

ADVERSARIAL, REPETITIVE = GENERATED = ("adversarial", "repetitive")
"""Sets that the benchmark generates; a file of the same name is not read."""


@dataclass(frozen=True, eq=False)
class PromptSet:
    """Requests of one kind.

    Attributes:
        name: Name: that of a set of ``Prompts``, or one of ``GENERATED``.
        requests: Requests without arm and ``max_tokens``; each has a seed, so that its answer is always the
            same.
    """

    name: str
    requests: tuple[CompletionRequest, ...]


def names_of_sets(prompts: Prompts, given: Sequence[str] | None, *, is_quick: bool) -> tuple[str, ...]:
    """Return the names of the sets to measure.

    Args:
        prompts: Prompts of the pair.
        given: Requested names; None for all sets, or with ``is_quick`` for the largest and ``adversarial``.
        is_quick: Whether the short benchmark is run.

    Raises:
        InvalidRequestError: A requested set does not exist, or there is none but generated ones.
    """
    own = tuple(name for name in prompts.sets if name not in GENERATED)
    known = (*own, *GENERATED)
    names = tuple(given) if given else (*own[:1], ADVERSARIAL) if is_quick else known
    unknown = [name for name in names if name not in known]
    if unknown or not own:
        raise InvalidRequestError(
            "there is no such prompt set",
            values=f"{', '.join(unknown or ['a set that is not generated'])}; prompts: {prompts.source}",
            limit=f"sets of these prompts: {', '.join(own) or 'none'}; generated: {', '.join(GENERATED)}",
            remedy="name some of these with --sets, or other prompts with --prompts",
        )
    return names


def draw_sets(prompts: Prompts, names: Sequence[str], count: int) -> Prompts:
    """Return the first prompts of each set that is not generated.

    Args:
        prompts: Prompts of the pair.
        names: Names from ``names_of_sets``.
        count: Number of prompts in each set.

    Raises:
        InvalidRequestError: A set has fewer prompts.
    """
    sets = {name: prompts.sets.get(name, ())[:count] for name in names if name not in GENERATED}
    for name, drawn in sets.items():
        if len(drawn) < count:
            raise InvalidRequestError(
                "a prompt set has too few prompts",
                values="; ".join((f"{name} of {prompts.source} has {len(drawn)}", *prompts.notes)),
                limit=f"these loads need {count} in each set, because no prompt is repeated",
                remedy="add prompts, leave the set out with --sets, or lower --concurrency",
            )
    kept = replace(prompts, sets=sets)
    if replaced := [name for name in prompts.sets if name in GENERATED]:
        return kept.with_note(f"the benchmark generates these sets itself: {', '.join(replaced)}")
    return kept


def make_prompt_sets(
    drawn: Prompts, names: Sequence[str], count: int, temperature: float
) -> dict[str, PromptSet]:
    """Make the requests of all sets except ``adversarial``, which ``adversarial_set`` generates.

    Args:
        drawn: Prompts from ``draw_sets``.
        names: Names from ``names_of_sets``.
        count: Number of requests in each set.
        temperature: Temperature of all requests.
    """
    sets = dict(drawn.sets)
    if REPETITIVE in names:
        sets[REPETITIVE] = tuple(Prompt(REPETITIVE, text) for text in repetitive_texts(count, _SEED))
    return {name: PromptSet(name, _requests(of_set, temperature)) for name, of_set in sets.items()}


def _requests(prompts: Sequence[Prompt], temperature: float) -> tuple[CompletionRequest, ...]:
    return tuple(
        CompletionRequest(prompt.text, temperature=temperature, seed=seed, **prompt.switches)
        for seed, prompt in enumerate(prompts)
    )


def adversarial_set(count: int, vocabulary: Vocabulary | None) -> PromptSet:
    """Generate the adversarial prompt set (``adversarial_requests``), which is greedy.

    Args:
        count: Number of requests.
        vocabulary: Vocabulary of the target; None if its tokenizer is not on this machine.

    Raises:
        InvalidRequestError: There is no vocabulary, or it has no tokens for single bytes.
    """
    if vocabulary is None:
        raise InvalidRequestError(
            "the adversarial prompt set cannot be generated",
            values="no tokenizer.json of the target on this machine",
            limit="the target's vocabulary, to restrict its answers",
            remedy="run the bench on the server's machine, or name other sets with --sets",
        )
    return PromptSet(ADVERSARIAL, adversarial_requests(count, _SEED, vocabulary.bytes_of))
