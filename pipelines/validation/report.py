"""A proof for people, and the same for machines."""

from __future__ import annotations

from typing import Any

from pipelines.validation.margin import Explanation
from pipelines.validation.proof import Finding, PassResult, Proof

_HEAD = f"{'asked of':<54} {'answers':>7} {'tokens':>7} {'differ':>6} {'missing':>7} {'accepted':>8} {'s':>6}"


def table_head() -> str:
    """Column titles above ``table_row``."""
    return f"{_HEAD}\n{'-' * len(_HEAD)}"


def table_row(result: PassResult) -> str:
    """One pass on one line."""
    rate = f"{result.num_accepted / result.num_drafted:.3f}" if result.num_drafted else "-"
    return (
        f"{result.asked!s:<54} {result.num_prompts:>7} {result.num_tokens:>7} {len(result.findings):>6} "
        f"{result.num_missing:>7} {rate:>8} {result.seconds:>6.1f}"
    )


def describe(finding: Finding, explanation: Explanation) -> str:
    """Where an answer parts from the target's own, in one paragraph."""
    where = f"prompt {finding.prompt.prompt_id}, {finding.asked}"
    if finding.divergence is None:
        return f"{where}: failed where the target alone answered: {finding.error}"
    divergence = finding.divergence
    text = (
        f"{where}: first difference ({divergence.kind}) at output position {divergence.position}: "
        f"the target alone gives {divergence.expected!r}, this answer {divergence.actual!r}"
    )
    if explanation.logit_margin is None:
        return f"{text}; logit margin not available: {explanation.why_no_margin}"
    return (
        f"{text}; {explanation.expected_text!r} against {explanation.actual_text!r}, "
        f"logit margin {explanation.logit_margin:.6g}"
    )


def as_document(proof: Proof, first: tuple[Finding, Explanation] | None) -> dict[str, Any]:
    """The proof, ready for JSON."""
    return {
        "verdict": proof.verdict,
        "failures": proof.failures(),
        "answers_compared": proof.num_answers,
        "tokens_compared": proof.num_tokens,
        "answers_missing": proof.num_missing,
        "answers_that_differ": len(proof.findings),
        "first_divergence": _finding_document(*first) if first else None,
        "passes": [_pass_document(result) for result in proof.passes],
    }


def _pass_document(result: PassResult) -> dict[str, Any]:
    return {
        "model": result.asked.model,
        "temperature": result.asked.temperature,
        "num_draft_tokens": result.asked.num_draft_tokens,
        "requests_at_once": result.asked.num_at_once,
        "prompts_compared": result.num_prompts,
        "tokens_compared": result.num_tokens,
        "answers_that_differ": len(result.findings),
        "answers_missing": result.num_missing,
        "total_draft_tokens": result.num_drafted,
        "total_accepted_draft_tokens": result.num_accepted,
        "seconds": round(result.seconds, 3),
    }


def _finding_document(finding: Finding, explanation: Explanation) -> dict[str, Any]:
    divergence = finding.divergence
    return {
        "prompt_id": finding.prompt.prompt_id,
        "asked": str(finding.asked),
        "error": str(finding.error) if finding.error else None,
        "kind": divergence.kind if divergence else None,
        "position": divergence.position if divergence else None,
        "expected": divergence.expected if divergence else None,
        "actual": divergence.actual if divergence else None,
        "expected_id": divergence.expected_id if divergence else None,
        "actual_id": divergence.actual_id if divergence else None,
        "expected_text": explanation.expected_text,
        "actual_text": explanation.actual_text,
        "logit_margin": explanation.logit_margin,
        "why_no_margin": explanation.why_no_margin,
    }
