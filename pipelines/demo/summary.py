"""Ask both models, compare their answers, and sum the comparison up: a table and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.figures import acceptance_rate
from pipelines.bench.reporting.section import Table
from pipelines.client import Chunk, Client, CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.program import Verdict
from pipelines.validation.differences import Difference
from pipelines.validation.exact.comparing import first_difference

_WORTH = 1.1  # ratio; a smaller gain hardly pays for the memory of a draft


@dataclass(frozen=True)
class Pair:
    """The two answers to one request.

    Attributes:
        prompt: Prompt of the request.
        kind: Name of its set.
        temperature: Temperature of the request; 0 is greedy.
        target: Answer of the target alone.
        speculative: Answer of draft and target together.
    """

    prompt: Prompt
    kind: str
    temperature: float
    target: Generation
    speculative: Generation

    @property
    def difference(self) -> Difference | None:
        """Return where the answers first differ; None if they are equal."""
        return first_difference(self.prompt.prompt_id, self.target, self.speculative)


def ask_pair(
    client: Client,
    prompt: Prompt,
    kind: str,
    request: CompletionRequest,
    *,
    target_first: bool,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> Pair:
    """Send a request to one model, then to the other.

    Args:
        client: Client of the server.
        prompt: Prompt of ``request``.
        kind: Name of its set.
        request: The request.
        target_first: Order of the models; alternate it, so that neither always runs on the cooler machine.
        on_chunk: Called with each chunk of the speculative stream as it arrives.

    Raises:
        DraftproofError: A request failed.
    """

    def speculative() -> Generation:
        with client.stream(request, SPECULATIVE) as stream:
            for chunk in stream:
                on_chunk(chunk)
            return stream.result()

    def target() -> Generation:
        with client.stream(request, TARGET_ALONE) as stream:
            return stream.result()

    if target_first:
        first, second = target(), speculative()
    else:
        second, first = speculative(), target()
    return Pair(prompt, kind, request.temperature, target=first, speculative=second)


@dataclass(frozen=True)
class KindFigures:
    """Greedy answers to prompts of one kind, one request at a time; speeds are geometric means over answers.

    Attributes:
        kind: Name of the prompt set.
        answers: Answers with at least two tokens, without which there is no speed.
        slower: How many of them were slower with the draft.
        alone: Tokens per second of the target alone, after the first token.
        with_draft: The same of draft and target.
        ratio: ``with_draft`` over ``alone`` with its 95 % interval, over pairs of answers to one prompt.
        acceptance_rate: Accepted / drafted tokens of all answers; None if nothing was drafted.
    """

    kind: str
    answers: int
    slower: int
    alone: float
    with_draft: float
    ratio: Interval
    acceptance_rate: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the answers show which of the two is faster."""
        return not self.ratio.low <= 1 <= self.ratio.high

    @property
    def is_worth_it(self) -> bool:
        """Whether the answers show a gain that is worth the draft's memory."""
        return self.is_shown and self.ratio.value >= _WORTH


def figures_of(pairs: Sequence[Pair]) -> list[KindFigures]:
    """Compute the figures of greedy answers by kind; a kind with fewer than two of them has none."""
    by_kind: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.temperature == 0 and pair.target.itl_s and pair.speculative.itl_s:
            by_kind.setdefault(pair.kind, []).append(pair)
    return [_figures(kind, of_kind) for kind, of_kind in by_kind.items() if len(of_kind) > 1]


def _figures(kind: str, pairs: Sequence[Pair]) -> KindFigures:
    alone, both = _speeds(pair.target for pair in pairs), _speeds(pair.speculative for pair in pairs)
    return KindFigures(
        kind,
        len(pairs),
        sum(with_draft < without for without, with_draft in zip(alone, both, strict=True)),
        statistics.geometric_mean(alone),
        statistics.geometric_mean(both),
        Blocks({"alone": alone, "both": both}).ratio("both", "alone"),
        acceptance_rate([pair.speculative for pair in pairs]),
    )


def _speeds(generations: Iterable[Generation]) -> list[float]:
    return [1 / generation.itl_s for generation in generations if generation.itl_s]


def table(figures: Sequence[KindFigures]) -> str:
    """Format the figures as a table, and say below how many answers were slower."""
    columns = "", "target alone", "with the draft", "ratio (95 % interval)", "acceptance rate"
    rows = tuple(
        (
            *(each.kind, f"{each.alone:.1f}", f"{each.with_draft:.1f}"),
            f"{each.ratio.value:.2f} ({each.ratio.low:.2f} to {each.ratio.high:.2f})",
            "-" if each.acceptance_rate is None else f"{each.acceptance_rate:.2f}",
        )
        for each in figures
    )
    slower, answers = sum(each.slower for each in figures), sum(each.answers for each in figures)
    said = (
        "Tokens per second after the first token, one request at a time, geometric means of answers.",
        f"{slower} of {answers} answers were slower with the draft.",
    )
    return "\n".join([*Table(columns, rows).lines(), *said])


def conclusion(figures: Sequence[KindFigures]) -> str:
    """Say in a sentence for which kinds of text the draft is worth it.

    Args:
        figures: Figures of at least one kind.
    """
    fastest = sorted(figures, key=lambda each: -each.ratio.value)
    ratios = [f"{each.ratio.value:.2f} on {each.kind}" for each in fastest]
    ratios[0] = ratios[0].replace(" ", " times ", 1)
    worth = [each.kind for each in fastest if each.is_worth_it]
    unknown = [each.kind for each in fastest if not each.is_shown]
    others = [each.kind for each in fastest if each.is_shown and not each.is_worth_it]
    said = []
    if worth:
        said.append(f"worth it for {_listed(worth)}, one request at a time")
    elif others:
        said.append(f"not worth it for {_listed(others)}")
    if unknown:
        said.append(f"not shown for {_listed(unknown)} by so few answers")
    return f"{', '.join(ratios)}: {'; '.join(said)}."


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def verdict_of(pairs: Sequence[Pair]) -> tuple[Verdict, str]:
    """Return ``pass`` if all answers are equal, and any tokens were compared and accepted; and why."""
    different = [pair for pair in pairs if pair.difference is not None]
    tokens = sum(pair.target.num_output_tokens for pair in pairs)
    drafted = sum(pair.speculative.total_draft_tokens for pair in pairs)
    accepted = sum(pair.speculative.total_accepted_draft_tokens for pair in pairs)
    if different:
        first = different[0]
        return (
            "fail",
            f"{len(different)} of {len(pairs)} answers differ from the target's own; first: prompt "
            f"{first.prompt.prompt_id}, T={first.temperature:g}: {first.difference}",
        )
    if not tokens:
        return "fail", f"{len(pairs)} answers without a token, so nothing was compared"
    if accepted:
        return (
            "pass",
            f"all {len(pairs)} answers ({tokens} tokens, {accepted} of them accepted draft tokens) are the "
            "target's own, token for token",
        )
    why = "nothing was drafted: it does not pay with this pair, or the recipe switches it off"
    if drafted:
        why = f"none of {drafted} draft tokens was right: this draft does not help this target"
    own = f"all {len(pairs)} answers ({tokens} tokens) are the target's own"
    return "fail", f"{own}, but {why} (see docs/reference/commands.md)"


def as_document(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return figures and verdict as a JSON object."""
    return {
        "verdict": verdict_of(pairs)[0],
        "answers_compared": len(pairs),
        "tokens_compared": sum(pair.target.num_output_tokens for pair in pairs),
        "accepted_draft_tokens": sum(pair.speculative.total_accepted_draft_tokens for pair in pairs),
        "answers_that_differ": [
            asdict(pair.difference) | {"temperature": pair.temperature}
            for pair in pairs
            if pair.difference is not None
        ],
        "figures": [asdict(each) for each in figures_of(pairs)],
    }
