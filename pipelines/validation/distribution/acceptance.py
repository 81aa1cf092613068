"""Measure the acceptance of seeded sampling by the coupled and the uncoupled rule.

Coupled: draft and target share the noise, and a draft token is accepted if it equals the target's own.
Uncoupled: independent noise and the ratio rule on the draft's logits (``use_draft_logits``), which gives the
target's distribution but not its exact tokens. The figures show what coupling costs in accepted tokens; they
do not affect the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.bench.reporting.section import Section, Table
from pipelines.client import CompletionRequest, Generation
from pipelines.client.model_names import SPECULATIVE
from pipelines.client.workers import Job, Workers
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.exact.asking import Asked
from pipelines.validation.exact.sampling_kinds import TEMPERATURE, seed_of

TITLE = "Acceptance of seeded sampling, coupled and uncoupled"

_COLUMNS = (
    *("num_draft_tokens", "sampling", "acceptance_rate", "mean_acceptance_length"),
    *("accepted", "drafted", "rounds", "answers"),
)


@dataclass(frozen=True)
class Acceptance:
    """Counts of one draft length under one rule.

    Attributes:
        num_draft_tokens: Draft length per round.
        is_coupled: Whether draft and target share the noise.
        num_answers: Number of answers.
        num_rounds: Number of target passes.
        num_drafted: Number of proposed draft tokens.
        num_accepted: Number of accepted draft tokens.
    """

    num_draft_tokens: int
    is_coupled: bool
    num_answers: int
    num_rounds: int
    num_drafted: int
    num_accepted: int

    @property
    def rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def mean_length(self) -> float | None:
        """1 + accepted / rounds: tokens per target pass; None without a round."""
        return 1 + self.num_accepted / self.num_rounds if self.num_rounds else None


def measure_acceptance(
    prompts: Sequence[Prompt],
    draft_lengths: Sequence[int],
    max_tokens: int,
    clients: Sequence[Asked],
    on_answer: Callable[[object], None] = lambda answer: None,
) -> Section:
    """Request answers to the same prompts with the same seeds by both rules.

    Args:
        prompts: Prompts, at least one.
        draft_lengths: Values of ``num_draft_tokens``, at least 1 each.
        max_tokens: Most output tokens per answer.
        clients: One client per concurrent request.
        on_answer: Called after each answer, in any thread.
    """
    workers = Workers([client.generate for client in clients])
    counts = []
    for length in draft_lengths:
        for is_coupled in (True, False):
            base = CompletionRequest(
                "",
                max_tokens=max_tokens,
                temperature=TEMPERATURE,
                num_draft_tokens=length,
                use_draft_logits=not is_coupled,
            )
            jobs = [
                Job(replace(base, prompt=prompt.text, seed=seed_of(index), **prompt.switches), SPECULATIVE)
                for index, prompt in enumerate(prompts)
            ]
            answers = workers.run(jobs, len(clients), on_answer)
            errors = [answer for answer in answers if isinstance(answer, DraftproofError)]
            if errors:
                return _not_measured(length, is_coupled, errors[0])
            given = [answer for answer in answers if isinstance(answer, Generation)]
            counts.append(_count(length, is_coupled, given))
    return _section(counts)


def _count(num_draft_tokens: int, is_coupled: bool, answers: Sequence[Generation]) -> Acceptance:
    return Acceptance(
        num_draft_tokens,
        is_coupled,
        num_answers=len(answers),
        num_rounds=sum(answer.num_rounds for answer in answers),
        num_drafted=sum(answer.total_draft_tokens for answer in answers),
        num_accepted=sum(answer.total_accepted_draft_tokens for answer in answers),
    )


def _not_measured(num_draft_tokens: int, is_coupled: bool, error: DraftproofError) -> Section:
    rule = _rule(is_coupled)
    summary = f"Not measured: num_draft_tokens {num_draft_tokens}, {rule}: {error}"
    return Section(TITLE, "info", summary, document={"error": str(error)})


def _section(counts: Sequence[Acceptance]) -> Section:
    pooled = {
        is_coupled: _pooled([each for each in counts if each.is_coupled is is_coupled])
        for is_coupled in (True, False)
    }
    rows = tuple(
        (
            str(each.num_draft_tokens),
            _rule(each.is_coupled),
            _figure(each.rate, 3),
            _figure(each.mean_length, 2),
            *(f"{count:,}" for count in (each.num_accepted, each.num_drafted, each.num_rounds)),
            str(each.num_answers),
        )
        for each in counts
    )
    summary = (
        f"At temperature {TEMPERATURE:g}, same prompts and seeds, all draft lengths together: "
        f"{_figure(pooled[True], 3)} of the drafted tokens are accepted with shared noise, "
        f"{_figure(pooled[False], 3)} with independent noise and the ratio rule."
    )
    return Section(TITLE, "info", summary, Table(_COLUMNS, rows), document=_document(counts))


def _document(counts: Sequence[Acceptance]) -> dict[str, object]:
    arms = [
        {
            "num_draft_tokens": each.num_draft_tokens,
            "sampling": _rule(each.is_coupled),
            "answers": each.num_answers,
            "num_rounds": each.num_rounds,
            "total_draft_tokens": each.num_drafted,
            "total_accepted_draft_tokens": each.num_accepted,
            "acceptance_rate": each.rate,
            "mean_acceptance_length": each.mean_length,
        }
        for each in counts
    ]
    return {"temperature": TEMPERATURE, "arms": arms}


def _pooled(counts: Sequence[Acceptance]) -> float | None:
    drafted = sum(each.num_drafted for each in counts)
    return sum(each.num_accepted for each in counts) / drafted if drafted else None


def _rule(is_coupled: bool) -> str:
    return "coupled" if is_coupled else "uncoupled"


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
