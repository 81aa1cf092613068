"""Show the token-by-token proof as sections of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.validation.exact.plan import NUM_COMBINATIONS
from pipelines.validation.exact.proof import PassResult
from pipelines.validation.exact.sampling_kinds import KINDS
from pipelines.validation.exact.verdict import CONFIDENCE, Group, Proof, total
from pipelines.validation.report import SideBySide

EQUALITY = "Equality with the target alone"
ALONE = "The target alone under load"
COVERED = "What was covered"
PASSES = "Passes"

_LIKELY, _NEARLY_CERTAIN = CONFIDENCE, 0.99


def exact_sections(proof: Proof, divergences: Sequence[SideBySide]) -> list[Section]:
    """Build all sections of the proof, with the verdict first."""
    return [
        equality_section(proof, divergences),
        alone_section(proof),
        covered_section(proof),
        passes_section(proof),
    ]


_GROUP_COLUMNS = (
    *("compared", "prompts", "answers", "tokens", "with log probs", "prompt tokens with log probs"),
    "prompts that diverged",
    f"rate below ({_LIKELY:.0%})",
    f"detected with {_LIKELY:.0%}",
    f"detected with {_NEARLY_CERTAIN:.0%}",
    "prompts still needed",
)


def equality_section(proof: Proof, divergences: Sequence[SideBySide]) -> Section:
    """Build the section with the verdict and its power."""
    failures, lacks = proof.failures(), proof.lacks()
    together = total(proof.speculative)
    if failures:
        summary = "; ".join([*failures, *proof.reasons_of_missing()])
    else:
        counts = f"{together.answers_compared:,} answers, {together.tokens_compared:,} tokens"
        summary = f"{counts}, all equal to the target's own"
        summary += f"; however, {'; '.join(lacks)}" if lacks else ""
    document = {
        "failures": failures,
        "lacks": lacks,
        "max_rate": proof.max_rate,
        "answers_compared": together.answers_compared,
        "tokens_compared": together.tokens_compared,
        "answers_missing": total(proof.passes).answers_missing,
        "missing_because": [{"error": error, "answers": count} for error, count in proof.missing],
        "answers_that_differ": len(proof.findings),
        "groups": [_group_document(group, proof) for group in proof.groups],
        "divergences": list(map(asdict, divergences)),
    }
    rows = tuple(_group_row(group, proof) for group in proof.groups)
    return Section(EQUALITY, proof.verdict, summary, Table(_GROUP_COLUMNS, rows), _power(proof), document)


def _group_row(group: Group, proof: Proof) -> tuple[str, ...]:
    document = _group_document(group, proof)
    *counts, bound, likely, nearly_certain, needed = list(document.values())[1:]
    rates = (f"{rate:.3%}" for rate in (bound, likely, nearly_certain))
    return (group.name, *(f"{count:,}" for count in counts), *rates, str(needed))


def _group_document(group: Group, proof: Proof) -> dict[str, Any]:
    """Return the figures of a group in the order of ``_GROUP_COLUMNS``."""
    return {
        "name": group.name,
        "prompts": group.num_prompts,
        "answers": group.totals.answers_compared,
        "tokens": group.totals.tokens_compared,
        "tokens_with_log_probs": group.totals.tokens_with_log_probs,
        "prompt_tokens_with_log_probs": group.totals.prompt_tokens_with_log_probs,
        "prompts_that_diverged": group.num_diverged,
        "rate_upper_bound_95": group.rate_bound,
        "detectable_rate_95": group.detectable_rate(_LIKELY),
        "detectable_rate_99": group.detectable_rate(_NEARLY_CERTAIN),
        "prompts_still_needed": group.num_prompts_lacking(proof.max_rate),
    }


def _power(proof: Proof) -> str:
    words = [
        f"{group.name}, {group.num_prompts} prompts: a fault that changes "
        f"{group.detectable_rate(_LIKELY):.2%} of prompts would have been detected with {_LIKELY:.0%}, one "
        f"of {group.detectable_rate(_NEARLY_CERTAIN):.2%} with {_NEARLY_CERTAIN:.0%}"
        for group in proof.groups
    ]
    return (
        f"{'; '.join(words)}. A pass needs {proof.max_rate:.0%} with {_LIKELY:.0%}. The trials are prompts, "
        "not tokens, because answers to one prompt fail together. The bound is one-sided (Clopper-Pearson)."
    )


def alone_section(proof: Proof) -> Section:
    """Build the A/A section: whether the target gives the same answers under load as alone."""
    counts = total(proof.alone)
    if counts.answers_that_differ:
        verdict: Verdict = "fail"
        summary = (
            f"{counts.answers_that_differ} of {counts.answers_compared:,} answers differ from those to one "
            "request at a time: the results of this runtime depend on the batch, so equal tokens cannot be "
            "expected"
        )
    else:
        verdict = "inconclusive" if counts.answers_missing or not counts.tokens_compared else "pass"
        summary = (
            f"{counts.answers_compared:,} answers, {counts.tokens_compared:,} tokens, all equal to those to "
            "one request at a time"
        )
    rows = _by_level(proof.alone, "concurrent requests", lambda result: result.asked.num_at_once)
    return Section(ALONE, verdict, summary, Table(_LEVEL_COLUMNS, rows), document=asdict(counts))


_LEVEL_COLUMNS = ("dimension", "level", "passes", "answers", "tokens", "differ", "missing")
_DIMENSIONS: dict[str, Callable[[PassResult], Any]] = {
    "model": lambda result: result.asked.model,
    "sampling": lambda result: result.asked.kind,
    "num_draft_tokens": lambda result: result.asked.draft_length.name,
    "concurrent requests": lambda result: result.asked.num_at_once,
    "arrivals": lambda result: "staggered" if result.asked.is_staggered else "together",
    "streaming": lambda result: "on" if result.asked.is_streaming else "off",
    "with cancellations": lambda result: "yes" if result.asked.with_cancellations else "no",
    "prefix cache": lambda result: "cold" if result.asked.is_cold else "warm",
}


def covered_section(proof: Proof) -> Section:
    """Build the section with the counts of each level of each dimension."""
    rows = [row for name, level in _DIMENSIONS.items() for row in _by_level(proof.speculative, name, level)]
    cut_off = total(proof.passes).requests_cut_off
    summary = (
        f"{len(proof.speculative)} passes of draft and target together; {_combinations(proof)}. "
        f"{cut_off:,} other requests were cancelled meanwhile."
    )
    if not proof.adaptive:
        summary += " This server has a fixed default draft length, so no pass was adaptive."
    asked = {result.asked.kind for result in proof.speculative}
    if left_out := [kind for kind in KINDS if kind not in asked]:
        summary += f" Not compared: {'; '.join(left_out)}: this server does not draft for these."
    levels = [dict(zip(_LEVEL_COLUMNS[:2], row[:2], strict=True)) for row in rows]
    document = {"levels": levels, "requests_cut_off": cut_off}
    return Section(COVERED, "info", summary, Table(_LEVEL_COLUMNS, tuple(rows)), document=document)


def _combinations(proof: Proof) -> str:
    if len(proof.passes) < NUM_COMBINATIONS:
        return f"the proof ended after {len(proof.passes)} of {NUM_COMBINATIONS} combinations"
    num_rounds = len(proof.passes) // NUM_COMBINATIONS
    return f"all {NUM_COMBINATIONS} combinations ran, {num_rounds} times at least"


def _by_level(
    results: Sequence[PassResult], name: str, level_of: Callable[[PassResult], Any]
) -> tuple[tuple[str, ...], ...]:
    rows = []
    for level in sorted({level_of(result) for result in results}):
        those = [result for result in results if level_of(result) == level]
        counts = total(those)
        shown = (
            *(len(those), counts.answers_compared, counts.tokens_compared),
            *(counts.answers_that_differ, counts.answers_missing),
        )
        rows.append((name, str(level), *(f"{count:,}" for count in shown)))
    return tuple(rows)


def passes_section(proof: Proof) -> Section:
    """Build the section with one row per pass."""
    seconds = sum(result.seconds for result in proof.passes)
    counts = [len(result.prompt_ids) for result in proof.passes] or [0]
    return Section(
        PASSES,
        "info",
        f"{len(proof.passes)} passes with {min(counts)} to {max(counts)} prompts each and answers of up to "
        f"{proof.max_tokens} tokens, in {seconds:,.0f} s without the answers of the target alone",
        Table(PASS_COLUMNS, tuple(pass_row(result) for result in proof.passes)),
        document={"passes": [_pass_document(result) for result in proof.passes]},
    )


PASS_COLUMNS = ("pass", "answers", "tokens", "differ", "missing", "accepted", "cancelled", "s")


def pass_row(result: PassResult) -> tuple[str, ...]:
    """Format one pass in the columns ``PASS_COLUMNS``."""
    of = result.totals
    rate = f"{of.total_accepted_draft_tokens / of.total_draft_tokens:.3f}" if of.total_draft_tokens else "-"
    counts = (of.answers_compared, of.tokens_compared, of.answers_that_differ, of.answers_missing)
    cut_off = str(of.requests_cut_off) if result.asked.with_cancellations else "-"
    return (str(result.asked), *map(str, counts), rate, cut_off, f"{result.seconds:.1f}")


def _pass_document(result: PassResult) -> dict[str, Any]:
    asked = result.asked
    return {
        "model": asked.model,
        "kind": asked.kind,
        "draft_length": asked.draft_length.name,
        "requests_at_once": asked.num_at_once,
        "staggered": asked.is_staggered,
        "streaming": asked.is_streaming,
        "cold": asked.is_cold,
        "cancellations": asked.with_cancellations,
        "prompts_compared": len(result.prompt_ids),
        **asdict(result.totals),
        "seconds": round(result.seconds, 3),
    }
