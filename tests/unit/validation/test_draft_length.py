"""Tests of the server's own draft length in the proof: requested like any other, and reported by its name."""

from __future__ import annotations

import html
import json
from dataclasses import replace

import pytest

from pipelines.bench.reporting.section import Section, joint_verdict
from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.validation import runs
from pipelines.validation.exact.plan import ADAPTIVE, ProofPlan
from pipelines.validation.exact.proof import prove
from pipelines.validation.exact.run import QUICK, Limits, plan_of
from pipelines.validation.exact.sampling_kinds import GREEDY
from pipelines.validation.exact.sections import COVERED, PASSES, covered_section
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.report import as_html
from pipelines.validation.runs import Own, verify_own
from tests.unit.client.scripted_client import Change, ScriptedClient

PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(QUICK.num_prompts))


def plan(default_draft_length: str) -> ProofPlan:
    limits = Limits(max_draft_len=2, max_requests=3, default_draft_length=default_draft_length)
    return replace(plan_of(QUICK, PROMPTS, limits), mean_gap_s=0.0)


def run(change: Change, default_draft_length: str = ADAPTIVE) -> Proof:
    asked = plan(default_draft_length)
    return Proof(prove(asked, [ScriptedClient(change)] * (max(asked.loads) + 1), "nonce"), asked.goal)


def by_default(request: CompletionRequest, model: str) -> bool:
    return model != TARGET_ALONE and request.num_draft_tokens is None


def levels(section: Section) -> list[str]:
    assert section.table is not None
    return [row[1] for row in section.table.rows if row[0] == "num_draft_tokens"]


def test_adaptive_answers_are_compared_like_all_others() -> None:
    def slip(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, text="?") if by_default(request, model) else given

    proof = run(slip)
    assert proof.verdict == "fail"
    assert {finding.asked.draft_length.used for finding in proof.findings} == {ADAPTIVE}
    assert len(proof.findings) == sum(result.num_answers for result in proof.adaptive)
    assert {result.asked.num_at_once for result in proof.adaptive} == set(plan(ADAPTIVE).loads)


def test_an_answer_with_another_draft_length_than_its_pass_has_is_inconclusive() -> None:
    def set_meanwhile(request: CompletionRequest, model: str, given: Generation) -> Generation:
        is_it = by_default(request, model) and request.prompt == "text 1"
        return replace(given, draft_length="4") if is_it else given

    proof = run(set_meanwhile)
    assert (proof.verdict, proof.failures()) == ("inconclusive", [])
    warm = [result for result in proof.adaptive if "p1" in result.prompt_ids and not result.asked.is_cold]
    told = "answers report another draft length: 4"
    assert proof.lacks() == [f"{result.asked}: {told}" for result in warm]
    assert warm


def test_a_server_that_ignores_the_draft_length_of_a_request_is_found_out() -> None:
    def stubborn(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, draft_length=ADAPTIVE) if model == SPECULATIVE else given

    lacks = run(stubborn).lacks()
    assert {lack.split()[1] for lack in lacks} == {"k=0", "k=1", "k=2"}
    assert all(lack.endswith("another draft length: adaptive") for lack in lacks)


def test_a_server_that_never_drafts_of_its_own_accord_has_not_shown_its_choice() -> None:
    def never(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, total_draft_tokens=0) if by_default(request, model) else given

    def seldom(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return given if request.prompt == "text 1" else never(request, model, given)

    proof = run(never)
    assert (proof.verdict, proof.failures()) == ("inconclusive", [])
    assert proof.lacks() == [
        "adaptive: nothing was drafted in any pass, so the server's choice was not tested"
    ]
    assert run(seldom).verdict == "pass"


def fixed(length: str) -> Change:
    """Return a server whose recipe, or operator, fixes the draft length."""

    def apply(request: CompletionRequest, model: str, given: Generation) -> Generation:
        drafted = int(length)
        counts = {"total_draft_tokens": 2 * drafted, "total_accepted_draft_tokens": drafted}
        return replace(given, draft_length=length, **counts) if by_default(request, model) else given

    return apply


def test_a_fixed_draft_length_of_the_servers_own_is_named_and_not_called_adaptive() -> None:
    for length in ("0", "2"):
        proof = run(fixed(length), length)
        assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
        assert any(f"k=the server's {length} " in str(result.asked) for result in proof.speculative)
        section = covered_section(proof)
        assert levels(section) == ["0", "1", "2", f"the server's {length}"]
        assert "fixed default draft length, so no pass was adaptive" in section.summary
    assert "no pass was adaptive" not in covered_section(run(lambda r, m, given: given)).summary


def test_a_fixed_draft_length_of_the_servers_own_must_be_what_it_says() -> None:
    def drafts_nothing(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(fixed("2")(request, model, given), total_draft_tokens=0)

    def drafts(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, draft_length="0") if by_default(request, model) else given

    for change, length, reason in (
        (drafts_nothing, "2", "nothing was drafted"),
        (drafts, "0", "speculation was off"),
    ):
        failures = run(change, length).failures()
        assert any(f"k=the server's {length} " in why and reason in why for why in failures), failures


@pytest.mark.parametrize(
    ("change", "shown"), [(lambda request, model, given: given, "adaptive"), (fixed("2"), "the server's 2")]
)
def test_the_command_asks_the_server_what_its_own_draft_length_is(
    change: Change, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting changed while the server runs is in no parameter of a model, but its answers report it."""
    monkeypatch.setattr("pipelines.validation.exact.run._MEAN_GAP_S", 0.0)
    monkeypatch.setattr(runs.Client, "connect", lambda url: ScriptedClient(change))
    prompts = Prompts("made", {"text": PROMPTS})
    report, conditions = verify_own(Own("grpc://127.0.0.1:1", "demo", QUICK, prompts), [])
    assert conditions["prompts"]["source"] == "made"
    assert joint_verdict(report.sections) == "pass"
    sections = {section.title: section for section in report.sections}
    assert levels(sections[COVERED]) == ["0", "1", "2", shown]
    passes = json.loads(json.dumps(sections[PASSES].document))["passes"]
    lengths = {(each["num_draft_tokens"], each["draft_length"]) for each in passes}
    assert lengths == {(None, ""), (0, "0"), (1, "1"), (2, "2"), (None, shown)}
    assert f"<td>{shown}</td>" in html.unescape(as_html(report, conditions))


def test_a_server_that_drafts_greedily_alone_is_judged_by_that() -> None:
    limited = replace(plan(ADAPTIVE), kinds=(GREEDY,))
    clients = [ScriptedClient()] * (max(limited.loads) + 1)
    proof = Proof(prove(limited, clients, "nonce"), limited.goal)
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    (greedy,) = proof.groups
    assert (greedy.name, greedy.num_prompts) == ("greedy", len(PROMPTS)), "no prompt is kept for other kinds"
    left_out = "Not compared: greedy, parameters; seeded; seeded, parameters"
    assert left_out in covered_section(proof).summary
    assert "Not compared" not in covered_section(run(lambda request, model, given: given)).summary
