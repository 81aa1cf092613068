"""Tests of proofs that lack answers: they say which errors the server gave instead."""

from __future__ import annotations

from pipelines.client import CompletionRequest, Generation
from pipelines.errors import InvalidRequestError, ServerUnavailableError
from pipelines.validation.exact.sections import equality_section
from tests.unit.validation.test_exact import PROMPTS, run


def test_a_prompt_that_the_target_cannot_answer_is_missing_not_equal() -> None:
    def refuse(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if request.prompt.endswith("text 1"):
            raise InvalidRequestError("too long", values=f"{len(request.prompt)} characters")
        return given

    proof = run(refuse)
    assert proof.verdict == "inconclusive"
    ((error, count),) = proof.missing
    assert count == proof.num_missing > 0
    assert error.startswith("too long; ")
    assert proof.failures() == []
    section = equality_section(proof, [])
    assert f"however, {count} answers could not be compared, because the server answered: too long; " in (
        section.summary
    )
    assert section.document["missing_because"] == [{"error": error, "answers": count}]
    assert {group.num_prompts for group in proof.groups} == {len(PROMPTS) - 1}


def test_a_server_that_goes_away_leaves_nothing_compared() -> None:
    def gone(request: CompletionRequest, model: str, given: Generation) -> Generation:
        raise ServerUnavailableError("gone")

    proof = run(gone)
    assert proof.verdict == "fail"
    assert "no token was compared" in proof.failures()
    assert "because the server answered: gone" in equality_section(proof, []).summary
