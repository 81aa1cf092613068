"""Show the token-by-token proof as sections of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import DraftproofError
from pipelines.validation.differences import Difference, common_length, excerpt, table_of
from pipelines.validation.exact.plan import NUM_COMBINATIONS
from pipelines.validation.exact.proof import Finding, PassResult
from pipelines.validation.exact.sampling_kinds import KINDS
from pipelines.validation.exact.verdict import Proof, total

EQUALITY = "Equality with the target alone"
DIFFERENCES = "Answers that differ"
ALONE = "The target alone under load"
PASSES = "Passes"

_NUM_SHOWN = 20  # differences


def exact_sections(proof: Proof) -> list[Section]:
    """Build all sections of the proof, with the verdict first."""
    differences = [differences_section(proof.findings)] if proof.findings else []
    return [equality_section(proof), *differences, alone_section(proof), passes_section(proof)]


def equality_section(proof: Proof) -> Section:
    """Build the section with the verdict and its power."""
    failures, lacks, groups = proof.failures(), proof.lacks(), proof.groups
    together = total(proof.speculative)
    if failures:
        summary = "; ".join([*failures, *proof.reasons_of_missing()])
    else:
        counts = f"{together.answers_compared:,} answers, {together.tokens_compared:,} tokens"
        summary = f"{counts}, all equal to the target's own"
        summary += f"; however, {'; '.join(lacks)}" if lacks else ""
    detected = [
        f"{group['name']}, {group['prompts']} prompts: a fault that changes "
        f"{group['detectable_rate_95']:.2%} of prompts would have been detected with 95%"
        for group in groups
    ]
    power = (
        f"{'; '.join(detected)}. A pass needs {proof.max_rate:.0%} with 95%. The trials are prompts, not "
        "tokens, because answers to one prompt fail together. The bound is one-sided (Clopper-Pearson)."
    )
    document = {
        "failures": failures,
        "lacks": lacks,
        "max_rate": proof.max_rate,
        "answers_compared": together.answers_compared,
        "tokens_compared": together.tokens_compared,
        "answers_missing": total(proof.passes).answers_missing,
        "missing_because": [{"error": error, "answers": count} for error, count in proof.missing],
        "answers_that_differ": len(proof.findings),
        "groups": groups,
    }
    return Section(EQUALITY, proof.verdict, summary, Table.of(groups), power, document)


def differences_section(findings: Sequence[Finding]) -> Section:
    """Build the section with the first differences."""
    shown = [(_with_text(finding), finding) for finding in findings[:_NUM_SHOWN]]
    documents = [
        {
            **asdict(difference),
            "asked": str(finding.asked),
            "prompt": finding.question.request.prompt,
            "parameters": _parameters(finding),
        }
        for difference, finding in shown
    ]
    summary = (
        f"The first {len(shown)} of {len(findings)}. Request of the first: "
        f"{documents[0]['parameters']:.400}; prompt {documents[0]['prompt']!r:.400}"
    )
    table = table_of([(difference, str(finding.asked)) for difference, finding in shown])
    return Section(DIFFERENCES, "info", summary, table, document={"differences": documents})


def _with_text(finding: Finding) -> Difference:
    """Return a difference, and if it is one of tokens, with the text around it."""
    found, expected, actual = finding.difference, finding.expected, finding.actual
    if isinstance(actual, DraftproofError) or not found.place.startswith("token"):
        return found
    start = common_length(expected.text, actual.text)
    return replace(
        found,
        expected=f"{found.expected} in {excerpt(expected.text, start)}",
        actual=f"{found.actual} in {excerpt(actual.text, start)}",
    )


def _parameters(finding: Finding) -> str:
    default = asdict(CompletionRequest(""))
    told = asdict(finding.question.request) | {"prompt": ""}
    if isinstance(finding.actual, Generation) and len(finding.asked.draft_length.in_turn) > 1:
        told["num_draft_tokens"] = finding.actual.draft_length
    return ", ".join(f"{name}={value}" for name, value in told.items() if value != default[name])


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
    return Section(ALONE, verdict, summary, document=asdict(counts))


def passes_section(proof: Proof) -> Section:
    """Build the section that says what was asked, with one row per pass."""
    num_rounds, num_left = divmod(len(proof.passes), NUM_COMBINATIONS)
    rounds = f"{num_rounds} rounds of all {NUM_COMBINATIONS} combinations and {num_left} passes"
    counts = [len(result.prompt_ids) for result in proof.passes] or [0]
    seconds = sum(result.seconds for result in proof.passes)
    summary = (
        f"{rounds}, with {min(counts)} to {max(counts)} prompts each and answers of up to "
        f"{proof.max_tokens} tokens, in {seconds:,.0f} s without the answers of the target alone. "
        f"{total(proof.passes).requests_cut_off:,} other requests were cancelled meanwhile."
    )
    if not proof.adaptive:
        summary += " This server has a fixed default draft length, so no pass was adaptive."
    asked = {result.asked.kind for result in proof.speculative}
    if left_out := [kind for kind in KINDS if kind not in asked]:
        summary += f" Not compared: {'; '.join(left_out)}: this server does not draft for these."
    document = {"passes": [_pass_document(result) for result in proof.passes]}
    return Section(PASSES, "info", summary, Table.of(list(map(_pass_row, proof.passes))), document=document)


def _pass_row(result: PassResult) -> dict[str, object]:
    of = result.totals
    rate = of.total_accepted_draft_tokens / of.total_draft_tokens if of.total_draft_tokens else None
    return {
        "pass": str(result.asked),
        "answers": of.answers_compared,
        "tokens": of.tokens_compared,
        "differ": of.answers_that_differ,
        "missing": of.answers_missing,
        "accepted": rate,
        "cancelled": of.requests_cut_off if result.asked.with_cancellations else None,
        "s": result.seconds,
    }


def _pass_document(result: PassResult) -> dict[str, Any]:
    return {
        **asdict(result.asked),
        "draft_length": result.asked.draft_length.name,
        "prompts_compared": len(result.prompt_ids),
        **asdict(result.totals),
        "seconds": round(result.seconds, 3),
    }
