"""Tests that the documents say of ``make verify`` what was run, what was compared and how it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.command_line.prompts import Prompt
from pipelines.validation.exact.run import QUICK, Limits, run_exact
from pipelines.validation.report import as_document
from tests.unit.client.scripted_client import ScriptedClient
from tests.unit.repository.test_figures import any_conditions, fill


def test_the_distribution_is_shown_with_its_verdicts(tmp_path: Path) -> None:
    title = "Distribution without a seed: ratio rule"
    section = {"title": title, "verdict": "inconclusive", "summary": "501 would do", "figures": {}}
    proof = _proof("pass", 0)
    text = fill("verify", {**proof, "sections": [*proof["sections"], section]}, tmp_path)
    assert f"{title}: **inconclusive**: 501 would do" in text


def _proof(verdict: str, num_different: int, server_chooses: tuple[str, ...] = ()) -> dict[str, Any]:
    asked = [{"model": "generate_target", "num_draft_tokens": None, "requests_at_once": 2}]
    asked += [
        {"model": "generate", "num_draft_tokens": length, "requests_at_once": load}
        for length in (0, 1, 2)
        for load in (1, 8)
    ]
    asked += [
        {"model": "generate", "num_draft_tokens": None, "draft_length": word, "requests_at_once": 8}
        for word in server_chooses
    ]
    group = {
        "name": "greedy",
        "prompts": 320,
        "prompts_that_diverged": num_different,
        "answers": 1600,
        "tokens": 204800,
        "tokens_with_log_probs": 1234,
        "prompt_tokens_with_log_probs": 567,
        "rate_upper_bound_95": 0.0093,
        "detectable_rate_95": 0.0093,
        "detectable_rate_99": 0.0143,
    }
    equality = {
        "answers_compared": 1600,
        "tokens_compared": 204800,
        "answers_missing": 0,
        "answers_that_differ": num_different,
        "groups": [group],
    }
    arms = [
        {
            "num_draft_tokens": 4,
            "sampling": sampling,
            "total_draft_tokens": 4000,
            "total_accepted_draft_tokens": accepted,
            "acceptance_rate": accepted / 4000,
            "mean_acceptance_length": 3.0,
        }
        for sampling, accepted in (("coupled", 2000), ("uncoupled", 2100))
    ]
    figures = {
        "Equality with the target alone": equality,
        "Passes": {"passes": asked},
        "Acceptance of seeded sampling, coupled and uncoupled": {"temperature": 0.8, "arms": arms},
    }
    sections = [
        {"title": title, "verdict": verdict, "summary": f"{verdict}, as it were", "figures": each}
        for title, each in figures.items()
    ]
    return {"verdict": verdict, "sections": sections, **any_conditions()}


@pytest.mark.parametrize(
    ("verdict", "num_different", "words"),
    [
        ("pass", 0, ("Passed:", ", 0 answers differ")),
        ("fail", 3, ("**Failed**:", "**3 answers differ**", "Passes: **fail**: fail, as it were")),
        ("inconclusive", 0, ("**Inconclusive**:", "Passes: **inconclusive**: inconclusive, as it were")),
    ],
)
def test_the_proof_block_says_what_was_compared_and_how_it_ended(
    verdict: str, num_different: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    text = fill("verify", _proof(verdict, num_different), tmp_path)
    assert all(word in text for word in words)
    assert "1,600 answers and 204,800 tokens" in text
    assert "`num_draft_tokens` 0 to 2, 1 and 8 concurrent requests, 6 passes" in text
    assert (
        f"| greedy | 320 | 1,600 | 204,800 | 1,234 | 567 | {num_different} | 0.93% of prompts | 1.43% of"
        in text
    )
    assert "| 4 | 0.500 (3.00), 2,000 of 4,000 | 0.525 (3.00), 2,100 of 4,000 |" in text


def test_the_blocks_of_verify_say_which_parts_were_run(tmp_path: Path) -> None:
    equality = _proof("pass", 0)
    title = "Distribution without a seed: ratio rule"
    rule = {"title": title, "verdict": "pass", "summary": "no difference", "figures": {}}
    whole = {**equality, "sections": [*equality["sections"], rule]}
    runs = ((equality, "A run of equality alone, one of"), (whole, "A whole run of `make verify`"))
    for number, (document, words) in enumerate(runs):
        for name in ("verify", "verdict"):
            assert f"-->\n{words}" in fill(name, document, tmp_path / f"{number}-{name}")


def test_the_proof_block_names_the_draft_length_that_the_server_chose(tmp_path: Path) -> None:
    adaptive = fill("verify", _proof("pass", 0, ("adaptive",)), tmp_path / "adaptive")
    assert "`num_draft_tokens` 0 to 2 and adaptive, 1 and 8 concurrent requests, 7 passes" in adaptive
    fixed = fill("verify", _proof("pass", 0, ("the server's 4",)), tmp_path / "fixed")
    assert "`num_draft_tokens` 0 to 2 and the server's 4, 1 and 8 concurrent requests" in fixed


def test_the_proof_block_reads_the_document_that_verify_writes(tmp_path: Path) -> None:
    client = ScriptedClient()
    prompts = tuple(Prompt(f"p{index}", f"text {index}") for index in range(QUICK.num_prompts))
    report = run_exact(QUICK, prompts, Limits(2, 5, "adaptive"), [client] * 5, None, "nonce")
    document = as_document(report, any_conditions()["conditions"])
    text = fill("verify", json.loads(json.dumps(document)), tmp_path)
    assert "Passed:" in text
    assert "`num_draft_tokens` 0 to 2 and adaptive, 1, 2 and 4 concurrent requests" in text
    assert "| seeded | 24 |" in text
