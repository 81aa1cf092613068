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


_COLUMNS: tuple[tuple[str, Callable[[ModelFigures], float | None], str], ...] = (
    ("TTFT ms", lambda each: each.ttft_s and 1e3 * each.ttft_s, ".0f"),
    ("ITL ms", lambda each: each.itl_s and 1e3 * each.itl_s, ".1f"),
    ("end-to-end s", lambda each: each.e2e_latency_s, ".2f"),
    ("tokens/s", lambda each: each.output_tokens_per_s, ".1f"),
    ("acceptance rate", lambda each: each.acceptance_rate, ".3f"),
    ("mean acceptance length", lambda each: each.mean_acceptance_length, ".2f"),
    ("speed-up", lambda each: each.speed_up, ".2f"),
)


def table(figures: Sequence[ModelFigures]) -> str:
    """Format the figures as a table."""
    lines = ["  ".join([f"{'model':<16}", *(head for head, _, _ in _COLUMNS)])]
    lines.append("-" * len(lines[0]))
    for each in figures:
        cells = [f"{each.model:<16}"]
        for head, read, form in _COLUMNS:
            value = read(each)
            cells.append(f"{'-' if value is None else format(value, form):>{len(head)}}")
        lines.append("  ".join(cells))
    return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """Comparison of all answers with those of the target alone.

    Attributes:
        is_pass: Whether all are equal, and any tokens were compared and accepted.
        reason: Why, in one sentence.
    """

    is_pass: bool
    reason: str

    def __str__(self) -> str:
        return f"{'PASS' if self.is_pass else 'FAIL'}: {self.reason}"


def verdict_of(pairs: Sequence[Pair]) -> Verdict:
    """Return the verdict on all pairs."""
    different = [pair for pair in pairs if pair.divergence is not None]
    tokens = sum(pair.target.num_output_tokens for pair in pairs)
    drafted = sum(pair.speculative.total_draft_tokens for pair in pairs)
    accepted = sum(pair.speculative.total_accepted_draft_tokens for pair in pairs)
    if different:
        first = different[0]
        return Verdict(
            False,
            f"{len(different)} of {len(pairs)} answers differ from the target's own; first: prompt "
            f"{first.prompt.prompt_id}, T={first.temperature:g}: {first.divergence}",
        )
    if not tokens:
        return Verdict(False, f"{len(pairs)} answers without a token, so nothing was compared")
    if accepted:
        return Verdict(
            True,
            f"all {len(pairs)} answers ({tokens} tokens, {accepted} of them accepted draft tokens) are the "
            "target's own, token for token",
        )
    why = "nothing was drafted: it does not pay with this pair, or the recipe switches it off"
    if drafted:
        why = f"none of {drafted} draft tokens was right: this draft does not help this target"
    own = f"all {len(pairs)} answers ({tokens} tokens) are the target's own"
    return Verdict(False, f"{own}, but {why} (see docs/reference/errors.md)")


def as_document(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return figures and verdict as a JSON object."""
    return {
        "verdict": "pass" if verdict_of(pairs).is_pass else "fail",
        "answers_compared": len(pairs),
        "tokens_compared": sum(pair.target.num_output_tokens for pair in pairs),
        "accepted_draft_tokens": sum(pair.speculative.total_accepted_draft_tokens for pair in pairs),
        "answers_that_differ": [
            {
                "prompt_id": pair.prompt.prompt_id,
                "temperature": pair.temperature,
                "divergence": asdict(pair.divergence),
            }
            for pair in pairs
            if pair.divergence is not None
        ],
        "figures": [asdict(each) for each in figures_of(pairs)],
    }
