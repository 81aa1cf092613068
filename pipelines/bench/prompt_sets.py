"""Chooses the prompt sets of a benchmark, and makes requests of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest
from pipelines.command_line.prompts import Prompts
from pipelines.errors import InvalidRequestError


@dataclass(frozen=True, eq=False)
class PromptSet:
    """Requests of one kind.

    Attributes:
        name: Name of a set of ``Prompts``.
        requests: Requests without arm and ``max_tokens``; each has a seed, so that its answer is always the
            same.
    """

    name: str
    requests: tuple[CompletionRequest, ...]


def names_of_sets(prompts: Prompts, given: Sequence[str] | None, *, is_quick: bool) -> tuple[str, ...]:
    """Return the names of the sets to measure.

    Args:
        prompts: Prompts of the pair.
        given: Requested names; None for all sets, or with ``is_quick`` for the largest.
        is_quick: Whether the short benchmark is run.

    Raises:
        InvalidRequestError: A requested set does not exist.
    """
    known = tuple(prompts.sets)
    if unknown := [name for name in given or () if name not in known]:
        raise InvalidRequestError(
            f"there is no prompt set {', '.join(unknown)}: {prompts.source} has {', '.join(known)}",
            "name some of these with --sets, or other prompts with --prompts",
        )
    return tuple(given or (known[:1] if is_quick else known))


def draw_sets(prompts: Prompts, names: Sequence[str], count: int) -> Prompts:
    """Return the first prompts of each set.

    Args:
        prompts: Prompts of the pair.
        names: Names from ``names_of_sets``.
        count: Number of prompts to take of each set.

    Raises:
        InvalidRequestError: Sets have fewer prompts.
    """
    sets = {name: prompts.sets.get(name, ())[:count] for name in names}
    if small := [f"{name}: {len(drawn)}" for name, drawn in sets.items() if len(drawn) < count]:
        raise InvalidRequestError(
            f"prompt sets have too few prompts, {count} are needed for these loads: "
            + "; ".join((f"{prompts.source}: {', '.join(small)}", *prompts.notes)),
            "lower --concurrency, add prompts (in *.txt one a line, or separated by lines ---), or name "
            "other sets with --sets",
        )
    return replace(prompts, sets=sets)


def make_prompt_sets(drawn: Prompts, temperature: float) -> tuple[PromptSet, ...]:
    """Make the requests of all sets.

    Args:
        drawn: Prompts from ``draw_sets``.
        temperature: Temperature of all requests.
    """
    return tuple(
        PromptSet(
            name,
            tuple(
                CompletionRequest(prompt.text, temperature=temperature, seed=seed, **prompt.switches)
                for seed, prompt in enumerate(of_set)
            ),
        )
        for name, of_set in drawn.sets.items()
    )
