"""Show the token-by-token proof as sections of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.validation.exact.proof import PassResult
from pipelines.validation.exact.sampling_kinds import KINDS
from pipelines.validation.exact.verdict import CONFIDENCE, Group, Proof
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


def equality_section(proof: Proof, divergences: Sequence[SideBySide]) -> Section:
    """Build the section with the verdict and its power."""
    failures, lacks = proof.failures(), proof.lacks()
    num_answers = sum(group.num_answers for group in proof.groups)
    num_tokens = sum(group.num_tokens for group in proof.groups)
    if failures:
        summary = "; ".join([*failures, *proof.reasons_of_missing()])
    else:
        summary = f"{num_answers:,} answers, {num_tokens:,} tokens, all equal to the target's own"
        summary += f"; however, {'; '.join(lacks)}" if lacks else ""
    columns = (
        *("compared", "prompts", "answers", "tokens", "with log probs", "prompt tokens with log probs"),
        "prompts that diverged",
        *(
            f"rate below ({_LIKELY:.0%})",
            f"detected with {_LIKELY:.0%}",
            f"detected with {_NEARLY_CERTAIN:.0%}",
        ),
        "prompts still needed",
    )
    rows = tuple(
        (
            group.name,
            *(f"{count:,}" for count in (group.num_prompts, group.num_answers, group.num_tokens)),
            *(f"{count:,}" for count in (group.num_log_probs, group.num_prompt_log_probs)),
            f"{group.num_diverged:,}",
            *(f"{rate:.3%}" for rate in _rates(group)),
            str(group.num_prompts_lacking(proof.goal)),
        )
        for group in proof.groups
    )
    document = {
        "failures": failures,
        "lacks": lacks,
        "goal": {"max_rate": proof.goal.max_rate, "num_tokens": proof.goal.num_tokens},
        "answers_compared": num_answers,
        "tokens_compared": num_tokens,
        "answers_missing": proof.num_missing,
        "missing_because": [{"error": error, "answers": count} for error, count in proof.missing],
        "answers_that_differ": len(proof.findings),
        "groups": [_group_document(group, proof) for group in proof.groups],
        "divergences": [divergence.as_document() for divergence in divergences],
    }
    return Section(EQUALITY, proof.verdict, summary, Table(columns, rows), _power(proof), document)


def _power(proof: Proof) -> str:
    words = [
        f"{group.name}, {group.num_prompts} prompts: a fault that changes "
        f"{group.detectable_rate(_LIKELY):.2%} of prompts would have been detected with {_LIKELY:.0%}, one "
        f"of {group.detectable_rate(_NEARLY_CERTAIN):.2%} with {_NEARLY_CERTAIN:.0%}"
        for group in proof.groups
    ]
    return (
        f"{'; '.join(words)}. The trials are prompts, not tokens, because answers to one prompt fail "
        "together. "
        "The bound is one-sided (Clopper-Pearson)."
    )


def _rates(group: Group) -> tuple[float, float, float]:
    return group.rate_bound, group.detectable_rate(_LIKELY), group.detectable_rate(_NEARLY_CERTAIN)


def _group_document(group: Group, proof: Proof) -> dict[str, Any]:
    bound, likely, nearly_certain = _rates(group)
    return {
        "name": group.name,
        "prompts": group.num_prompts,
        "prompts_that_diverged": group.num_diverged,
        "answers": group.num_answers,
        "tokens": group.num_tokens,
        "tokens_with_log_probs": group.num_log_probs,
        "prompt_tokens_with_log_probs": group.num_prompt_log_probs,
        "rate_upper_bound_95": bound,
        "detectable_rate_95": likely,
        "detectable_rate_99": nearly_certain,
        "prompts_still_needed": group.num_prompts_lacking(proof.goal),
    }


def alone_section(proof: Proof) -> Section:
    """Build the A/A section: whether the target gives the same answers under load as alone."""
    differ = sum(len(result.findings) for result in proof.alone)
    missing = sum(result.num_missing for result in proof.alone)
    answers = sum(result.num_answers for result in proof.alone)
    tokens = sum(result.num_tokens for result in proof.alone)
    if differ:
        summary = (
            f"{differ} of {answers:,} answers differ from those to one request at a time: the results of "
            "this runtime depend on the batch, so equal tokens cannot be expected"
        )
    else:
        summary = f"{answers:,} answers, {tokens:,} tokens, all equal to those to one request at a time"
    verdict: Verdict = "fail" if differ else "inconclusive" if missing or not tokens else "pass"
    rows = _by_level(proof.alone, "concurrent requests", lambda result: result.asked.num_at_once)
    document = {
        "answers_compared": answers,
        "tokens_compared": tokens,
        "answers_missing": missing,
        "answers_that_differ": differ,
    }
    return Section(ALONE, verdict, summary, Table(_LEVEL_COLUMNS, rows), document=document)


_LEVEL_COLUMNS = ("dimension", "level", "passes", "answers", "tokens", "differ", "missing")


def covered_section(proof: Proof) -> Section:
    """Build the section with the counts of each level of each dimension."""
    dimensions: dict[str, Callable[[PassResult], object]] = {
        "model": lambda result: result.asked.model,
        "sampling": lambda result: result.asked.kind,
        "num_draft_tokens": lambda result: result.asked.draft_length,
        "concurrent requests": lambda result: result.asked.num_at_once,
        "arrivals": lambda result: "staggered" if result.asked.is_staggered else "together",
        "streaming": lambda result: "on" if result.asked.is_streaming else "off",
        "with cancellations": lambda result: "yes" if result.asked.with_cancellations else "no",
        "prefix cache": lambda result: "cold" if result.asked.is_cold else "warm",
    }
    rows = [row for name, level in dimensions.items() for row in _by_level(proof.speculative, name, level)]
    cut_off = sum(result.num_cut_off for result in proof.passes)
    summary = (
        f"{len(proof.speculative)} passes of draft and target together; every two levels of different "
        f"dimensions occur together in at least one. {cut_off:,} other requests were cancelled meanwhile."
    )
    if not proof.adaptive:
        summary += " This server has a fixed default draft length, so no pass was adaptive."
    if left_out := [
        kind for kind in KINDS if kind not in {result.asked.kind for result in proof.speculative}
    ]:
        summary += f" Not compared: {'; '.join(left_out)}: this server does not draft for these."
    levels = [dict(zip(_LEVEL_COLUMNS[:2], row[:2], strict=True)) for row in rows]
    document = {"levels": levels, "requests_cut_off": cut_off}
    return Section(COVERED, "info", summary, Table(_LEVEL_COLUMNS, tuple(rows)), document=document)


def _by_level(
    results: Sequence[PassResult], name: str, level_of: Callable[[PassResult], object]
) -> tuple[tuple[str, ...], ...]:
    rows = []
    for level in dict.fromkeys(level_of(result) for result in sorted(results, key=_order)):
        those = [result for result in results if level_of(result) == level]
        counts = (
            len(those),
            sum(result.num_answers for result in those),
            sum(result.num_tokens for result in those),
            sum(len(result.findings) for result in those),
            sum(result.num_missing for result in those),
        )
        rows.append((name, str(level), *(f"{count:,}" for count in counts)))
    return tuple(rows)


def _order(result: PassResult) -> tuple[float, int]:
    length = result.asked.draft_length.num_draft_tokens
    return math.inf if length is None else length, result.asked.num_at_once


def passes_section(proof: Proof) -> Section:
    """Build the section with one row per pass."""
    seconds = sum(result.seconds for result in proof.passes)
    return Section(
        PASSES,
        "info",
        f"{len(proof.passes)} passes in {seconds:,.0f} s, without the answers of the target alone",
        Table(PASS_COLUMNS, tuple(pass_row(result) for result in proof.passes)),
        document={"passes": [_pass_document(result) for result in proof.passes]},
    )


PASS_COLUMNS = ("pass", "answers", "tokens", "differ", "missing", "accepted", "cancelled", "s")


def pass_row(result: PassResult) -> tuple[str, ...]:
    """Format one pass in the columns ``PASS_COLUMNS``."""
    rate = f"{result.num_accepted / result.num_drafted:.3f}" if result.num_drafted else "-"
    counts = (result.num_answers, result.num_tokens, len(result.findings), result.num_missing)
    cut_off = str(result.num_cut_off) if result.asked.with_cancellations else "-"
    return (str(result.asked), *map(str, counts), rate, cut_off, f"{result.seconds:.1f}")


def _pass_document(result: PassResult) -> dict[str, Any]:
    asked = result.asked
    return {
        "model": asked.model,
        "kind": asked.kind,
        "num_draft_tokens": asked.draft_length.num_draft_tokens,
        "draft_length": str(asked.draft_length),
        "requests_at_once": asked.num_at_once,
        "staggered": asked.is_staggered,
        "streaming": asked.is_streaming,
        "cold": asked.is_cold,
        "cancellations": asked.with_cancellations,
        "requests_cut_off": result.num_cut_off,
        "prompts_compared": len(result.prompt_ids),
        "answers_compared": result.num_answers,
        "tokens_compared": result.num_tokens,
        "tokens_with_log_probs": result.num_log_probs,
        "prompt_tokens_with_log_probs": result.num_prompt_log_probs,
        "answers_that_differ": len(result.findings),
        "answers_missing": result.num_missing,
        "total_draft_tokens": result.num_drafted,
        "total_accepted_draft_tokens": result.num_accepted,
        "num_rounds": result.num_rounds,
        "seconds": round(result.seconds, 3),
    }
