"""Tests of what is noticed of TensorRT-LLM's traps: penalties are ignored, samples share one stream.

The stand-in is stricter than ``trtllm-serve``: of the fields of ``CompletionRequest`` (1.3.0rc3,
``serve/openai_protocol.py``) it has these, its traps are in every request, and it tells neither token ids nor
log probabilities.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.validation.__main__ import main
from tests.gpu.probe import traps
from tests.support.stand_in_openai import stand_in_openai

FIELDS = (
    *(
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "n",
        "echo",
    ),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "top_k", "top_p", "min_p", "logit_bias"),
)
PENALTY = {"frequency_penalty": 1.5}
WITHOUT: dict[str, Any] = {"decoding_type": "Draft_Target", "max_draft_len": 4}
WITH = {**WITHOUT, "allow_advanced_sampling": True, "enable_penalty": True}


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        (None, "penalties change answers, and samples differ"),
        (WITH, "the server ignores the randomness of requests without a seed"),
        (WITHOUT, "the server ignores penalties and the randomness of requests without a seed"),
    ],
)
def test_traps_are_named(speculation: dict[str, Any] | None, said: str) -> None:
    with stand_in_openai(speculation=speculation, knows=FIELDS) as server:
        assert traps("demo", server.url).text == said


@pytest.mark.parametrize(
    ("speculation", "fields", "code", "num_different"),  # 3: too few prompts to pass
    [(WITH, PENALTY, 3, 0), (WITHOUT, PENALTY, 1, 12), (WITHOUT, {}, 3, 0)],
)
def test_verify_sees_penalties_that_the_candidate_ignores(
    speculation: dict[str, Any], fields: dict[str, Any], code: int, num_different: int, capsys: Any
) -> None:
    size = "--num-prompts", "12", "--max-tokens", "8", "--num-at-once", "3", "--expect", "exact", "--json"
    asked = "--fields", json.dumps(fields), "--control-fields", json.dumps(fields)
    with (
        stand_in_openai(knows=FIELDS) as control,
        stand_in_openai(speculation=speculation, knows=FIELDS) as candidate,
    ):
        assert main(["--against", candidate.url, "--control", control.url, *asked, *size]) == code
    sections = json.loads(capsys.readouterr().out.splitlines()[-1])["sections"]
    audits = sections[1]["figures"]["audits"]
    judged = [figures for name, figures in audits.items() if name.startswith("plain answers")]
    assert {figures["questions"] - figures["equal"] for figures in judged} == {num_different}
