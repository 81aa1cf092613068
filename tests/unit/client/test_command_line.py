"""Tests of the client's command line against a stand-in server on real sockets."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipelines.client import CompletionRequest
from pipelines.client.__main__ import main
from tests.support.stand_in_scripts import two_rounds, with_log_probs
from tests.support.stand_in_server import StandInServer


def test_the_command_line_prints_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    with StandInServer(two_rounds) as server:
        url = server.grpc_url
        assert main(["--url", url, "x"]) == 0
        assert capsys.readouterr().out == "a ü b\n"
        assert main(["--url", url, "--json", "--field", 'stop_words=["q"]', "x"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["output_ids"] == [5, 6, 7, 8]
    assert document["acceptance_rate"] == 0.25
    assert server.requests[-1][1]["stop_words"] == ["q"]


def test_the_command_line_sends_every_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        **{"temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.5},
        **{"presence_penalty": -0.5, "frequency_penalty": 2, "min_tokens": 3, "seed": 11, "end_id": 9},
        **{"stop_words": ["q", "r"], "bad_words": ["ugly", "bad"], "logit_bias": [[5, -100], [0, 0.5]]},
        **{"guide": ["regex", "[a-z]+"], "num_log_probs": 2, "return_prompt_log_probs": True},
        **{"num_draft_tokens": 0, "use_draft_logits": True, "session_id": "s1", "prediction": "y"},
        **{"arm": "stable", "add_special_tokens": False, "parse_special_tokens": True},
        **{"skip_special_tokens": False},
    }
    arguments = ["--max-tokens", "7", "-f", "prompt_ids=[5, 6]"]
    for name, value in fields.items():
        arguments += ["-f", f"{name}={json.dumps(value)}"]
    with StandInServer(with_log_probs) as server:
        assert main(["--url", server.grpc_url, "--json", *arguments, "x"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert (document["seed"], document["log_probs"]) == (2**64 - 1, [-0.5, -2.0, -9.0])
    assert document["top_log_probs"][0] == [[5, -0.5], [1, -1.5]]
    ((_, inputs),) = server.requests
    asked = dataclasses.asdict(
        CompletionRequest(
            *("x", 7, 0.5, 3, 0.75, 11, ("q", "r"), 9, 0, 0.125, 1.5, -0.5, 2.0, 3, ("ugly", "bad")),
            logit_bias=((5, -100.0), (0, 0.5)),
            guide=("regex", "[a-z]+"),
            num_log_probs=2,
            use_draft_logits=True,
            return_prompt_log_probs=True,
            session_id="s1",
            prediction="y",
            arm="stable",
            prompt_ids=(5, 6),
            add_special_tokens=False,
            parse_special_tokens=True,
            skip_special_tokens=False,
        )
    )
    assert inputs["text_input"] == asked.pop("prompt")
    guide = (inputs.pop("guided_decoding_guide_type"), inputs.pop("guided_decoding_guide"))
    assert guide == asked.pop("guide")
    assert inputs["input_ids"] == list(asked.pop("prompt_ids"))
    assert inputs["return_log_probs"] is True
    bias = zip(inputs["logit_bias_ids"], inputs["logit_bias_values"], strict=True)
    assert tuple(bias) == asked.pop("logit_bias")
    for name in ("resume_output_ids", "stop_token_ids", "cache_salt"):  # for programs, which have the tokens
        assert not asked.pop(name)
    for name, value in asked.items():
        assert inputs[name] == (list(value) if isinstance(value, tuple) else value), name
