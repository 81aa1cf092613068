"""Ask both models, compare their answers, and sum the comparison up: a table and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.client import Chunk, Client, CompletionRequest, Generation
from pipelines.client.comparison import Divergence, first_divergence
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt


@dataclass(frozen=True)
class Pair:
    """The two answers to one request.

    Attributes:
        prompt: Prompt of the request.
        temperature: Temperature of the request; 0 is greedy.
        target: Answer of the target alone.
        speculative: Answer of draft and target together.
    """

    prompt: Prompt
    temperature: float
    target: Generation
    speculative: Generation

    @property
    def divergence(self) -> Divergence | None:
        """Return where the answers first differ; None if they are equal."""
        return first_divergence(self.target, self.speculative)

    @property
    def speed_up(self) -> float:
        """Return the end-to-end latency of the target alone divided by that of both together."""
        return self.target.e2e_latency_s / self.speculative.e2e_latency_s


def ask_pair(
    client: Client,
    prompt: Prompt,
    request: CompletionRequest,
    *,
    target_first: bool,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> Pair:
    """Send a request to one model, then to the other.

    Args:
        client: Client of the server.
        prompt: Prompt of ``request``.
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
    return Pair(prompt, request.temperature, target=first, speculative=second)


@dataclass(frozen=True)
class ModelFigures:
    """Results of one model, one request at a time; times are medians over requests.

    Attributes:
        model: "target alone" or "draft and target".
        ttft_s: Time to first token; None without tokens.
        itl_s: Inter-token latency; None without a second token.
        e2e_latency_s: End-to-end latency of an answer.
        output_tokens_per_s: Number of all tokens divided by the sum of all latencies.
        acceptance_rate: Accepted / drafted tokens of all requests; None for the target alone.
        mean_acceptance_length: 1 + accepted / rounds of all requests; None for the target alone.
        speed_up: Tokens per second divided by those of the target alone.
    """

    model: str
    ttft_s: float | None
    itl_s: float | None
    e2e_latency_s: float
    output_tokens_per_s: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    speed_up: float


def figures_of(pairs: Sequence[Pair]) -> list[ModelFigures]:
    """Compute the figures of greedy answers: of the target alone and of both together."""
    greedy = [pair for pair in pairs if pair.temperature == 0]
    if not greedy:
        return []
    alone = [pair.target for pair in greedy]
    both = [pair.speculative for pair in greedy]
    baseline = _rate(alone)
    return [_figures("target alone", alone, baseline), _figures("draft and target", both, baseline)]


def _figures(model: str, generations: Sequence[Generation], baseline: float) -> ModelFigures:
    drafted = sum(generation.total_draft_tokens for generation in generations)
    accepted = sum(generation.total_accepted_draft_tokens for generation in generations)
    rounds = sum(generation.num_rounds for generation in generations)
    rate = _rate(generations)
    return ModelFigures(
        model,
        _median([generation.ttft_s for generation in generations]),
        _median([generation.itl_s for generation in generations]),
        statistics.median(generation.e2e_latency_s for generation in generations),
        rate,
        accepted / drafted if drafted else None,
        1 + accepted / rounds if rounds else None,
        rate / baseline if baseline else 0.0,
    )


def _rate(generations: Sequence[Generation]) -> float:
    tokens = sum(generation.num_output_tokens for generation in generations)
    return tokens / sum(generation.e2e_latency_s for generation in generations)


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def table(figures: Sequence[ModelFigures]) -> str:
    """Format the figures as a table."""
    head = (
        f"{'model':<17} {'TTFT ms':>8} {'ITL ms':>7} {'end-to-end s':>12} {'tokens/s':>9} "
        f"{'acceptance rate':>15} {'mean acceptance length':>22} {'speed-up':>8}"
    )
    lines = [head, "-" * len(head)]
    for entry in figures:
        lines.append(
            f"{entry.model:<17} {_cell(entry.ttft_s, 1e3, 0):>8} {_cell(entry.itl_s, 1e3, 1):>7} "
            f"{entry.e2e_latency_s:>12.2f} {entry.output_tokens_per_s:>9.1f} "
            f"{_cell(entry.acceptance_rate, 1, 3):>15} {_cell(entry.mean_acceptance_length, 1, 2):>22} "
            f"{entry.speed_up:>7.2f}x"
        )
    return "\n".join(lines)


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


@dataclass(frozen=True)
class Verdict:
    """Comparison of all answers with those of the target alone.

    Attributes:
        num_answers: Number of compared pairs.
        num_tokens: Output tokens of the target alone.
        num_drafted: Draft tokens in the speculative answers.
        num_accepted: Accepted draft tokens in the speculative answers.
        different: Pairs whose answers differ.
    """

    num_answers: int
    num_tokens: int
    num_drafted: int
    num_accepted: int
    different: tuple[Pair, ...]

    @property
    def is_pass(self) -> bool:
        """Return whether all answers are equal, and any tokens were compared and accepted."""
        return self.num_tokens > 0 and self.num_accepted > 0 and not self.different

    def __str__(self) -> str:
        if self.different:
            pair = self.different[0]
            return (
                f"FAIL: {len(self.different)} of {self.num_answers} answers differ from the target's own; "
                f"first: prompt {pair.prompt.prompt_id}, T={pair.temperature:g}: "
                f"{pair.divergence}"
            )
        if not self.num_tokens:
            return f"FAIL: {self.num_answers} answers without a token, so nothing was compared"
        if not self.num_accepted:
            why = (
                f"none of {self.num_drafted} draft tokens was right: this draft does not help this target"
                if self.num_drafted
                else "nothing was drafted: it does not pay with this pair, or the recipe switches it off"
            )
            return (
                f"FAIL: all {self.num_answers} answers ({self.num_tokens} tokens) are the target's own, but "
                f"{why} (see docs/reference/errors.md)"
            )
        return (
            f"PASS: all {self.num_answers} answers ({self.num_tokens} tokens, {self.num_accepted} of them "
            "accepted draft tokens) are the target's own, token for token"
        )


def verdict_of(pairs: Sequence[Pair]) -> Verdict:
    """Return the verdict on all pairs."""
    return Verdict(
        num_answers=len(pairs),
        num_tokens=sum(pair.target.num_output_tokens for pair in pairs),
        num_drafted=sum(pair.speculative.total_draft_tokens for pair in pairs),
        num_accepted=sum(pair.speculative.total_accepted_draft_tokens for pair in pairs),
        different=tuple(pair for pair in pairs if pair.divergence is not None),
    )


def as_document(figures: Sequence[ModelFigures], verdict: Verdict) -> dict[str, Any]:
    """Return figures and verdict as a JSON object."""
    return {
        "verdict": "pass" if verdict.is_pass else "fail",
        "answers_compared": verdict.num_answers,
        "tokens_compared": verdict.num_tokens,
        "accepted_draft_tokens": verdict.num_accepted,
        "answers_that_differ": [
            {
                "prompt_id": pair.prompt.prompt_id,
                "temperature": pair.temperature,
                "divergence": asdict(pair.divergence) if pair.divergence else None,
            }
            for pair in verdict.different
        ],
        "figures": [asdict(entry) for entry in figures],
    }
