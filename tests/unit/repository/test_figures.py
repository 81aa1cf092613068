"""Tests that tables and pictures of the documents come from result files and from the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.figures.__main__ import main
from docs.figures.blocks import BLOCKS, pages, render
from pipelines.bench.report.document import as_document as bench_document
from tests.conftest import REPOSITORY_ROOT
from tests.unit.bench.answers import results

TEXTS = {page.as_posix(): (REPOSITORY_ROOT / page).read_text(encoding="utf-8") for page in pages()}


@pytest.mark.parametrize("page", TEXTS)
def test_figures_are_those_of_the_result_files(page: str) -> None:
    assert render(TEXTS[page]) == TEXTS[page], "run: make figures"


@pytest.mark.parametrize("page", TEXTS)
def test_no_measured_figure_is_typed_by_hand(page: str) -> None:
    prose = re.sub(r"<!-- figures:.*?<!-- /figures -->", "", TEXTS[page], flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:tokens/s|ms\b|times faster)", prose) == []


def test_check_mode_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert {page: (REPOSITORY_ROOT / page).read_text(encoding="utf-8") for page in TEXTS} == TEXTS
    assert "up to date" in capsys.readouterr().out


def test_a_block_without_a_result_file_says_so(tmp_path: Path) -> None:
    for name in BLOCKS:
        text = render(f"<!-- figures:{name} -->\nold\n<!-- /figures -->\n", tmp_path)
        assert "Not measured yet" in text
        assert "old" not in text


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
    text = fill("sampler", {"sampler": costs, "conditions": conditions}, tmp_path)
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
    text = fill("router", {**cost, **any_conditions()}, tmp_path)
    assert "| first token | 21.00 ms | 21.20 ms | +0.21 ms | -0.04 to +0.50 ms |" in text
    assert "| each further token | 21.00 ms | 21.20 ms | -0.01 ms | -0.02 to +0.00 ms |" in text
    assert "8 concurrent requests: 0.99 times the output tokens per second (0.98 to 1.01). 7 pairs" in text
    assert "**1 answers differed.**" in text


def test_quantizations_are_shown_with_their_intervals_and_steps_with_their_ratio(tmp_path: Path) -> None:
    each = {"value": 0.5, "interval": [0.25, 0.75]}
    found = {
        name: dict.fromkeys(("kl", "same_argmax", "perplexity_ratio"), each) for name in ("int8", "int4")
    }
    unquantized = {"acceptance_rate": 0.7, "mean_acceptance_length": 3.6}
    changed = {**unquantized, "change": -0.03, "change_interval": [-0.05, -0.01]}
    pairs = [
        {"target": target, "draft": draft, **(unquantized if target == draft == "none" else changed)}
        for target in ("none", "int8", "int4")
        for draft in ("none", "int8", "int4")
    ]
    sizes = {
        "num_windows": 200,
        "window_tokens": 256,
        "num_prompts": 128,
        "num_draft_tokens": 4,
        "max_tokens": 64,
    }
    document = {"divergence": {"target": found}, "acceptance": pairs, **sizes, **any_conditions()}
    text = fill("quantized-pair", document, tmp_path)
    assert "| target | INT4 | 0.50000 [0.25000, 0.75000] | 0.500 [0.250, 0.750] |" in text
    assert "| float32 | 0.700 (3.60) | 0.700 (3.60), -0.030 [-0.050, -0.010] |" in text
    step = {"num_rows": 5, "int8_ms": 22.0, "int4_ms": 13.2, "ratio": 0.6, "ratio_quartiles": [0.58, 0.63]}
    document = {"steps": [step], "context": 128, "repetitions": 61, **any_conditions()}
    document["memory_bytes"] = {"int8": 6e8, "int4": 3e8}
    engines = {name: {"weight_bytes_per_step": size} for name, size in (("int8", 5e8), ("int4", 2.7e8))}
    document["conditions"]["engines"] = engines
    text = fill("quantized-steps", document, tmp_path / "steps")
    assert "| 5 | 22.0 | 13.2 | 0.60 (0.58 to 0.63) |" in text and "500 MB of weights in INT8" in text


def any_conditions() -> dict[str, Any]:
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
    text = fill("headline", bench_document(results(adaptive_at_2=ratio)), tmp_path)
    adaptive = f"| 2 | 10.0 | {10 * ratio:.1f} | **{ratio:.2f}** ({ratio:.2f} to {ratio:.2f}) | 2: 1.50 |"
    assert adaptive in text
    assert ("at 1 and 2 concurrent requests" in text) is says_slower
    assert "Every answer was the target's own." in text
    assert "commit 0123456789" in text


def test_the_table_of_every_load_has_all_prompt_sets_loads_and_verdicts(tmp_path: Path) -> None:
    text = fill("every-load", bench_document(results(adaptive_at_2=1.6)), tmp_path)
    assert "| Prompts | 1 concurrent | 2 concurrent | arrivals at 0.5 of capacity |" in text
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
    document = {"arms": arms, "repetitions": 3, "max_tokens": 128, **any_conditions()}
    document["conditions"] |= {"peers": {"genai": {"title": "GenAI"}}, "method": "in turn"}
    text = fill("peers", document, tmp_path)
    assert "| 1 | Draftproof, through Triton | 50 -> 200 | 0 of 12 |" in text
    assert "| 1 | GenAI | 40 -> 100 (K=6): **2.00** (1.90 to 2.10) | 3 of 36 |" in text


def test_a_result_of_another_bench_is_not_read(tmp_path: Path) -> None:
    text = fill("headline", {"format": 1}, tmp_path)
    assert "Not measured yet with this bench" in text


def fill(name: str, document: dict[str, Any], root: Path) -> str:
    path = root / BLOCKS[name][0]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return render(f"<!-- figures:{name} -->\n<!-- /figures -->", root)


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
    text = fill("pair", {"greedy": with_clean, "sampled": mode, "conditions": conditions}, tmp_path)
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
        **any_conditions(),
    }
    text = fill("demo", demo, tmp_path)
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
            "- **its process crashes: failed**: 2",
        ),
    ],
)
def test_the_drills_say_what_they_took_and_what_clients_noticed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    about = {"num_clients": 4, "num_prompts": 300, "draft_length": "adaptive"}
    text = fill("drills", {"drills": [_drill(**changes)], **about, **any_conditions()}, tmp_path)
    assert "| its process crashes | rolled back | step/1 |" in text
    assert words in text
    assert ("**2**" in text) is bool(changes)


@pytest.mark.parametrize(
    ("num_lost", "words"), [(0, "| 1,234 | 0 | 0 | 5 | 31 | 0.21 s | - |"), (2, "| **2** | 0 |")]
)
def test_the_drills_of_a_fleet_say_what_clients_noticed(num_lost: int, words: str, tmp_path: Path) -> None:
    drill = {"drill": "a server is killed", "rounds": 8, "num_requests": 1234, "num_lost": num_lost}
    drill |= {"num_wrong": 0, "num_interrupted": 31, "median_pause_s": 0.214, "longest_pause_s": None}
    drill["num_broken"] = 5
    drill |= any_conditions()
    about = {"num_servers": 3, "num_front_doors": 2, "num_clients": 9, "drills": [drill]}
    assert words in fill("fleet-drills", about, tmp_path)


def test_drills_of_several_runs_have_the_conditions_of_each(tmp_path: Path) -> None:
    counts = {"rounds": 8, "num_requests": 1234, "num_lost": 0, "num_wrong": 0, "num_broken": 0}
    counts |= {"num_interrupted": 0, "median_pause_s": None, "longest_pause_s": None}
    drills = []
    for name, command in (("killed", "first"), ("hangs", "first"), ("drained", "second")):
        about = {**any_conditions()["conditions"], "command": command}
        drills.append({"drill": name, **counts, "conditions": about})
    about = {"num_servers": 3, "num_front_doors": 2, "num_clients": 9, "drills": drills}
    text = fill("fleet-drills", about, tmp_path)
    assert text.count("- From ") == 2
    assert '- From "killed" on: ' in text
    assert '- From "drained" on: ' in text


def _fault_drill(**changes: Any) -> dict[str, Any]:
    counts = {"requests": 1234, "equal": 1200, "wrong": 0, "hung": 0, "lost": 0}
    times = {"not_ready_s": 0.25, "ready_s": 1.5, "last_error_s": 1.4, "gone_s": None}
    drill = {"drill": "SIGKILL of router", "errors": {"engine_failed": 34}, "metrics_are_true": True}
    return {**drill, **counts, **times, "figures": {"stopped_s": 4.25, "deaths": 1}, "faults": [], **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "| 1,234 | 1,200 | 0 | 0 | 0 | 34 `engine_failed` | 0.25 s | 1.50 s | 1.40 s | yes | - |"),
        ({"hung": 2, "faults": ["2 requests hung"]}, "- **SIGKILL of router: failed**: 2 req"),
        ({"metrics_are_true": False}, "| **no** |"),
        ({"requests": 0}, "- SIGKILL of router: stopped 4.2 s, deaths 1"),
    ],
)
def test_the_fault_drills_say_what_clients_and_probes_noticed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    about = {"num_questions": 40, "seconds": 400}
    text = fill("fault-drills", {"drills": [_fault_drill(**changes)], **about, **any_conditions()}, tmp_path)
    assert words in text
    assert ("**2**" in text) is (changes.get("hung") == 2)
