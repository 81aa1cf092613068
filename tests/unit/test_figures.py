"""README's tables come from result files and say what these say; run: pytest tests/unit/test_figures.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.figures import BLOCKS, main, render
from pipelines.bench.document import as_document as bench_document
from pipelines.prompts import Prompt
from pipelines.validation.exact import run_exact
from pipelines.validation.report import as_document
from pipelines.validation.sizes import QUICK, Limits
from tests.conftest import REPOSITORY_ROOT
from tests.unit.bench_answers import results
from tests.unit.scripted_client import ScriptedClient

README = (REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8")


def test_figures_are_those_of_the_result_files() -> None:
    assert render(README) == README, "run: make figures"


def test_no_measured_figure_is_typed_by_hand() -> None:
    prose = re.sub(r"<!-- figures:.*?<!-- /figures -->", "", README, flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:tokens/s|ms\b|times faster)", prose) == []


def test_check_mode_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert (REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8") == README
    assert "up to date" in capsys.readouterr().out


def test_a_block_without_a_result_file_says_so(tmp_path: Path) -> None:
    for name in BLOCKS:
        text = render(f"<!-- figures:{name} -->\nold\n<!-- /figures -->\n", tmp_path)
        assert "Not measured yet" in text
        assert "old" not in text


def test_the_law_is_shown_with_its_verdicts(tmp_path: Path) -> None:
    section = {"title": "Law: ratio rule", "verdict": "inconclusive", "summary": "501 would do"}
    text = _fill("law", {"sections": [section], **_about()}, tmp_path)
    assert "- Law: ratio rule: **inconclusive**: 501 would do" in text


def test_the_sampler_is_shown_beside_the_step_it_belongs_to(tmp_path: Path) -> None:
    costs = [
        {"setting": setting, "num_rows": rows, "sampler_ms": rows / 40, "step_ms": 20.0, "share": rows / 800}
        for setting in ("greedy", "temperature")
        for rows in (8, 40)
    ]
    conditions = {
        "engines": {"target": {"num_parameters": 5e8}},
        **{"cpu": "C", "num_cores": 2, "load_average_1min": 0.5, "date": "2026-11-21T", "git_sha": "abc"},
        "command": "python -m x",
    }
    text = _fill("sampler", {"sampler": costs, "conditions": conditions}, tmp_path)
    assert "| Choosing tokens | 8 rows | 40 rows |" in text
    assert (
        "| temperature | 0.20 ms beside a step of 20.0 ms: 1.0% | 1.00 ms beside a step of 20.0 ms: 5.0% |"
        in text
    )
    assert "500.0 M parameters" in text


def test_what_the_router_adds_is_shown_with_its_interval_and_its_sign(tmp_path: Path) -> None:
    added = {"direct_ms": 21.0, "routed_ms": 21.2, "num_pairs": 7}
    cost = {
        "ttft": {**added, "added_ms": {"value": 0.21, "low": -0.04, "high": 0.5}},
        "itl": {**added, "added_ms": {"value": -0.01, "low": -0.02, "high": 0.0}},
        "speed_ratio": {"value": 0.994, "low": 0.98, "high": 1.01},
        **{"num_at_once": 8, "max_tokens": 40, "num_different": 1},
    }
    text = _fill("router", {**cost, **_about()}, tmp_path)
    assert "| first token | 21.00 ms | 21.20 ms | +0.21 ms | -0.04 to +0.50 ms |" in text
    assert "| each further token | 21.00 ms | 21.20 ms | -0.01 ms | -0.02 to +0.00 ms |" in text
    assert "8 at once: 0.99 times the output tokens per second (0.98 to 1.01). 7 pairs" in text
    assert "**1 answers differed.**" in text


def _about() -> dict[str, Any]:
    return {
        "conditions": {
            "recipe": "demo-large",
            "engines": {"target": {"num_parameters": 500e6, "quantization": "int8"}},
            "cpu": "a processor",
            "num_cores": 2,
            "load_average_1min": 0.1,
            "triton_version": "2.51.0",
            "packages": {"openvino": "2026.4.1"},
            "python": "3.11.7",
            "date": "2026-11-20T12:00:00Z",
            "git_sha": "0123456789abcdef",
            "command": "python -m pipelines.bench",
        },
    }


@pytest.mark.parametrize(("ratio", "says_slower"), [(0.9, True), (1.1, False)])
def test_the_headline_says_where_speculation_is_slower(
    ratio: float, says_slower: bool, tmp_path: Path
) -> None:
    text = _fill("headline", bench_document(results(adaptive_at_2=ratio)), tmp_path)
    adaptive = f"| 2 | 10.0 | {10 * ratio:.1f} | **{ratio:.2f}** ({ratio:.2f} to {ratio:.2f}) | 2: 1.50 |"
    assert adaptive in text
    assert ("at 1 and 2 requests at once" in text) is says_slower
    assert "Every answer was the target's own." in text
    assert "commit 0123456789" in text


def test_the_table_of_every_load_has_all_prompt_sets_loads_and_verdicts(tmp_path: Path) -> None:
    text = _fill("every-load", bench_document(results(adaptive_at_2=1.6)), tmp_path)
    assert "| Prompts | 1 at once | 2 at once | arrivals at 0.5 of capacity |" in text
    assert "| code | **0.50** (0.50 to 0.50) | **1.60** (1.60 to 1.60) | **0.50** (0.50 to 0.50) |" in text
    assert "target alone: 1 of 3 pass, 0 are inconclusive, 2 fail." in text
    assert "best fixed draft length: 1 of 3 pass" in text


def _peer_arm(engine: str, length: int | None, rate: float, different: int = 0) -> dict[str, Any]:
    spread = {"median": rate, "low": rate, "high": rate}
    ours = {"median": 200 / rate, "low": 190 / rate, "high": 210 / rate}
    arm = {"engine": engine, "num_draft_tokens": length, "prompt_set": "code", "num_at_once": 1}
    return {
        **arm,
        "output_tokens_per_s": spread,
        "ours_to_this": ours,
        "num_answers": 12,
        "num_different": different,
    }


def test_each_engine_is_shown_at_its_best_draft_length(tmp_path: Path) -> None:
    arms = [_peer_arm("draftproof", 0, 50), _peer_arm("draftproof", None, 200), _peer_arm("genai", 0, 40)]
    arms += [_peer_arm("genai", 2, 80, different=3), _peer_arm("genai", 6, 100), _peer_arm("genai", 8, 90)]
    document = {"arms": arms, "repetitions": 3, "max_tokens": 128, **_about()}
    document["conditions"] |= {"peers": {"genai": {"title": "GenAI"}}, "method": "in turn"}
    text = _fill("peers", document, tmp_path)
    assert "| 1 | Draftproof, through Triton | 50 -> 200 | 0 of 12 |" in text
    assert "| 1 | GenAI | 40 -> 100 (K=6): **2.00** (1.90 to 2.10) | 3 of 36 |" in text


def test_a_result_of_another_bench_is_not_read(tmp_path: Path) -> None:
    text = _fill("headline", {"format": 1}, tmp_path)
    assert "Not measured yet with this bench" in text


def _fill(name: str, document: dict[str, Any], root: Path) -> str:
    path = root / BLOCKS[name][0]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return render(f"<!-- figures:{name} -->\n<!-- /figures -->", root)


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
    return {"verdict": verdict, "sections": sections, **_about()}


@pytest.mark.parametrize(
    ("verdict", "num_different", "words"),
    [
        ("pass", 0, ("Passed:", ", 0 answers differ")),
        ("fail", 3, ("**Failed**:", "**3 answers differ**", "Passes: fail: fail, as it were")),
        ("inconclusive", 0, ("**Inconclusive**:", "Passes: inconclusive: inconclusive, as it were")),
    ],
)
def test_the_proof_block_says_what_was_compared_and_how_it_ended(
    verdict: str, num_different: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    text = _fill("verify", _proof(verdict, num_different), tmp_path)
    assert all(word in text for word in words)
    assert "1,600 answers and 204,800 tokens" in text
    assert "`num_draft_tokens` 0 to 2, 1 and 8 requests at once, 6 passes" in text
    assert f"| greedy | 320 | 1,600 | 204,800 | 1,234 | {num_different} | 0.93% of prompts | 1.43% of" in text
    assert "| 4 | 0.500 (3.00), 2,000 of 4,000 | 0.525 (3.00), 2,100 of 4,000 |" in text


def test_the_proof_block_names_the_draft_length_that_the_server_chose(tmp_path: Path) -> None:
    adaptive = _fill("verify", _proof("pass", 0, ("adaptive",)), tmp_path / "adaptive")
    assert "`num_draft_tokens` 0 to 2 and adaptive, 1 and 8 requests at once, 7 passes" in adaptive
    fixed = _fill("verify", _proof("pass", 0, ("the server's 4",)), tmp_path / "fixed")
    assert "`num_draft_tokens` 0 to 2 and the server's 4, 1 and 8 requests at once" in fixed


def test_the_proof_block_reads_the_document_that_verify_writes(tmp_path: Path) -> None:
    client = ScriptedClient()
    prompts = tuple(Prompt(f"p{index}", f"text {index}") for index in range(QUICK.num_prompts))
    report = run_exact(QUICK, prompts, Limits(2, 5, "adaptive"), [client] * 5, None, "nonce")
    document = as_document(report, _about()["conditions"])
    text = _fill("verify", json.loads(json.dumps(document)), tmp_path)
    assert "Passed:" in text
    assert "`num_draft_tokens` 0 to 2 and adaptive, 1, 2 and 4 requests at once" in text
    assert "| seeded | 24 |" in text


def test_the_pair_block_gives_acceptance_with_and_without_loops(tmp_path: Path) -> None:
    figures = {"acceptance_rate": 0.5, "mean_acceptance_length": 3.0}
    mode = {"outputs_without_loop": 9, "all_outputs": {"4": figures}, "loop_share_of_tokens": 0.5}
    conditions = {
        "prompts": 128,
        "prompt_tokens": 64,
        "new_tokens": 128,
        "temperature_of_sampled": 0.8,
        "coupling": "shared noise",
        "weights": "bfloat16",
        "processor": "a processor",
        "torch": "2.13.0",
        "date": "2026-11-20T12:00:00+00:00",
    }
    with_clean = {**mode, "outputs_without_loop_only": {"4": {**figures, "acceptance_rate": 0.25}}}
    text = _fill("pair", {"greedy": with_clean, "sampled": mode, "conditions": conditions}, tmp_path)
    assert "| 4 | 0.50 (3.00) | 0.25 (3.00) | 0.50 (3.00) | - |" in text
    assert "50% of the greedy" in text


def test_the_demo_block_has_one_line_per_model_and_transport(tmp_path: Path) -> None:
    figures = {
        "transport": "http",
        "model": "target alone",
        "ttft_s": None,
        "itl_s": None,
        "e2e_latency_s": 1.234,
        "output_tokens_per_s": 51.9,
        "acceptance_rate": None,
        "mean_acceptance_length": None,
        "speed_up": 1.0,
    }
    demo = {
        "verdict": "pass",
        "answers_compared": 36,
        "tokens_compared": 2304,
        "accepted_draft_tokens": 1200,
        "answers_that_differ": [],
        "figures": [figures],
        "seconds": {"build": 3.2, "start": 2.0, "answers": 40.0, "stop": 0.5},
        **_about(),
    }
    text = _fill("demo", demo, tmp_path)
    assert "| HTTP, whole answers | target alone | - | - | 1.23 | 51.9 | - | - | 1.00 |" in text
    assert "PASS: 36 answers, 2,304 tokens, 1,200 of them accepted draft tokens; 0 answers differ" in text


def _drill(**changes: Any) -> dict[str, Any]:
    drill = {
        "drill": "its process crashes",
        "phase": "rolled_back",
        "decided_in": "step/1",
        "num_asked": 2345,
    }
    counts = {"num_requests": 1234, "most_requests": 3000, "num_fallbacks": 7, "num_lost": 0, "num_wrong": 0}
    return {**drill, **counts, "seconds": 61.4, "faults": [], **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "| 1,234 (3,000) | 61 | 2,345 | 7 | 0 | 0 |"),
        (
            {"num_lost": 2, "faults": ["2 requests were lost"]},
            "- **its process crashes: not as it has to be**: 2",
        ),
    ],
)
def test_the_drills_say_what_they_took_and_what_clients_noticed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    about = {"num_clients": 4, "num_prompts": 300, "draft_length": "adaptive"}
    text = _fill("drills", {"drills": [_drill(**changes)], **about, **_about()}, tmp_path)
    assert "| its process crashes | rolled back | step/1 |" in text
    assert words in text
    assert ("**2**" in text) is bool(changes)
