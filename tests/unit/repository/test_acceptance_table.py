"""Tests that the tables of predicted acceptance match the result file."""

from __future__ import annotations

import itertools
from typing import Any

from docs.figures.acceptance import predicted_acceptance


def _pair(draft: str, target: str, temperature: float) -> dict[str, Any]:
    rate = 0.7 if draft == target == "none" else 0.6
    return {
        "draft": draft,
        "target": target,
        "temperature": temperature,
        "acceptance_rate": rate,
        "acceptance_rate_interval": [rate - 0.05, rate + 0.05],
        "acceptance_rate_change": rate - 0.7,
        "acceptance_rate_change_interval": [rate - 0.72, rate - 0.69],
        "mean_acceptance_length": 1 + 4 * rate,
    }


def test_targets_go_down_and_drafts_across() -> None:
    names = ("none", "fp8")
    document = {
        "recipe": "demo",
        "num_prompts": 64,
        "prompt_tokens": 64,
        "max_tokens": 64,
        "num_draft_tokens": 4,
        "pairs": [_pair(*each) for each in itertools.product(names, names, (0.0, 0.8))],
        "agreement": [
            {"target": "none", "same_argmax": 1.0, "same_argmax_interval": [1.0, 1.0]},
            {"target": "fp8", "same_argmax": 0.93, "same_argmax_interval": [0.91, 0.95]},
        ],
        "conditions": {
            "cpu": "a processor",
            "packages": {"openvino": "2026.4.1"},
            "date": "2026-11-21T12:00:00Z",
            "git_sha": "0123456789abcdef",
        },
    }
    text = predicted_acceptance(document)
    assert "| Target (greedy) | draft unquantized | draft FP8 | same argmax |" in text
    assert "| Target (temperature 0.8, shared noise) | draft unquantized |" in text
    changed = "0.600 (3.40), -0.100 [-0.120, -0.090]"
    assert (
        text.count(f"| unquantized | 0.700 [0.650, 0.750] (3.80) | {changed} | 1.000 [1.000, 1.000] |") == 2
    )
    assert f"| FP8 | {changed} | {changed} | 0.930 [0.910, 0.950] |" in text
    assert "64 held-out prompts of 64 tokens" in text and "commit 0123456789" in text
