"""Tests of requests to a server with NVIDIA's model names, and of what is reported as unchecked.

Run: pytest tests/unit/validation/test_foreign_server.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.models import ModelSpec, Tensors, spec_from_config
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, VerificationError
from pipelines.validation.audit.against import Foreign, verify_foreign
from pipelines.validation.audit.nvidia_server import ForeignServer, ModelNames, Replay, TokenizerFile

VOCAB_SIZE = 100


def config(name: str, inputs: dict[str, str], outputs: dict[str, str], **others: Any) -> dict[str, Any]:
    """Return a configuration in Triton's JSON; a type that ends in ? is optional."""

    def tensors(types: dict[str, str]) -> list[dict[str, Any]]:
        return [
            {
                "name": key,
                "data_type": f"TYPE_{kind.rstrip('?')}",
                "dims": ["1"],
                "optional": kind.endswith("?"),
            }
            for key, kind in types.items()
        ]

    return {"name": name, "max_batch_size": 8, "input": tensors(inputs), "output": tensors(outputs), **others}


TEXT = {"text_input": "STRING", "max_tokens": "INT32"}
CONTROL = config("ensemble", {**TEXT, "stream": "BOOL?", "top_k": "INT32?"}, {"text_output": "STRING"})
CANDIDATE = config(
    "tensorrt_llm_bls",
    {
        **TEXT,
        "stream": "BOOL?",
        "top_k": "INT32?",
        "num_draft_tokens": "INT32?",
        "return_perf_metrics": "BOOL?",
    },
    {"text_output": "STRING", "total_draft_tokens": "INT32"},
)
ENGINE = config(
    "tensorrt_llm",
    {
        "input_ids": "INT32",
        "input_lengths": "INT32",
        "request_output_len": "INT32",
        "runtime_top_k": "INT32?",
        "return_generation_logits": "BOOL?",
    },
    {"generation_logits": "FP32"},
)
PREPROCESSING = config(
    "preprocessing",
    {"QUERY": "STRING", "REQUEST_OUTPUT_LEN": "INT32"},
    {"INPUT_ID": "INT32", "OUT_END_ID": "INT32"},
)

Reply = Callable[[str, Tensors], list[Tensors]]


@dataclass
class FakeCalls:
    """A server without a network; ``reply`` gives its answers."""

    reply: Reply
    configs: tuple[dict[str, Any], ...] = (CONTROL, CANDIDATE, ENGINE, PREPROCESSING)
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def describe(self, model: str) -> ModelSpec:
        for found in self.configs:
            if found["name"] == model:
                return spec_from_config(found)
        raise InvalidRequestError(f"model '{model}' is not found")

    def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
        self.sent.append((model.name, {name: array.ravel().tolist() for name, array in inputs.items()}))
        return self.reply(model.name, inputs)

    def close(self) -> None:
        pass


def text(*parts: str, **others: int) -> list[Tensors]:
    more = {name: np.array([[value]], np.int32) for name, value in others.items()}
    return [{"text_output": np.array([[part]], np.object_), **more} for part in parts]


def ask(reply: Reply, model: str, **configs: Any) -> tuple[Generation, ForeignServer, dict[str, Any]]:
    calls = FakeCalls(reply, **configs)
    server = ForeignServer(calls)
    answer = server.generate(CompletionRequest("abc", max_tokens=4, num_draft_tokens=3), model)
    return answer, server, calls.sent[0][1]


def test_only_what_a_model_has_is_sent_in_its_own_types() -> None:
    answer, server, sent = ask(lambda *_: text("xy", total_draft_tokens=9), "tensorrt_llm_bls")
    assert sent == {
        "text_input": ["abc"],
        "max_tokens": [4],
        "stream": [False],
        "top_k": [1],
        "num_draft_tokens": [3],
        "return_perf_metrics": [True],
    }
    assert (answer.text, answer.output_ids, answer.total_draft_tokens) == ("xy", (), 9)
    assert not server.silent_on_drafting and not server.not_checked


def test_what_a_model_lacks_is_named_and_not_sent() -> None:
    bare = config("bare", TEXT, {"text_output": "STRING"})
    _, server, sent = ask(lambda *_: text("xy"), "bare", configs=(bare,))
    assert set(sent) == {"text_input", "max_tokens"}
    notes = "; ".join(server.not_checked)
    assert "bare has no input top_k" in notes
    assert "bare has no input num_draft_tokens" in notes
    assert server.silent_on_drafting == {"bare"}


@pytest.mark.parametrize(
    "inputs", [{**TEXT, "image_bytes": "UINT8"}, {"QUERY": "STRING", "max_tokens": "INT32"}, {}]
)
def test_a_model_that_cannot_be_asked_is_refused_with_its_inputs(inputs: dict[str, str]) -> None:
    odd = config("odd", inputs, {"text_output": "STRING"})
    with pytest.raises(VerificationError, match="odd has other inputs"):
        ask(lambda *_: text("xy"), "odd", configs=(odd,))


def test_texts_of_decoupled_answers_are_joined_and_the_prompt_is_cut_off() -> None:
    answer, _, _ = ask(lambda *_: text("abc", "de", "f"), "ensemble")
    assert answer.text == "def"
    answer, _, _ = ask(lambda *_: text("xabc"), "ensemble")
    assert answer.text == "xabc"
    several = [{"text_output": np.array([["first", "second beam"]], np.object_)}]
    assert ask(lambda *_: several, "ensemble")[0].text == "first"


@pytest.mark.parametrize("responses", [[], [{"other": np.zeros(1)}]])
def test_an_answer_without_text_is_an_error(responses: list[Tensors]) -> None:
    with pytest.raises(DraftproofError, match="returned no text"):
        ask(lambda *_: responses, "ensemble")


def test_sampled_answers_are_not_asked_for() -> None:
    with pytest.raises(ValueError, match="repeats the seed"):
        ForeignServer(FakeCalls(lambda *_: [])).generate(CompletionRequest("a", temperature=1.0), "ensemble")


# Margins.


def table(model: str, inputs: Tensors, likeliest: int = 20) -> list[Tensors]:
    """Return a model over characters whose logits fall with the distance from ``likeliest``."""
    if model == "preprocessing":
        ids = [ord(letter) - ord("a") + 10 for letter in inputs["QUERY"].ravel()[0]]
        return [{"INPUT_ID": np.array([ids], np.int32), "OUT_END_ID": np.array([[21]], np.int32)}]
    logits = -np.abs(np.arange(VOCAB_SIZE) - likeliest).astype(np.float32)
    return [{"generation_logits": logits.reshape(1, 1, 1, -1)}]


def answer_of(text: str, ids: tuple[int, ...] = ()) -> Generation:
    return Generation(text, ids, (), "", 0, 0, 0, (), None, 0.0)


def margin(
    first: Generation, second: Generation, reply: Reply = table, **others: Any
) -> tuple[Any, list[Any]]:
    calls = FakeCalls(reply, **others)
    return Replay(ForeignServer(calls), ModelNames()).margin(Prompt("a", "ab"), first, second), calls.sent


def test_the_engine_is_given_the_common_beginning_and_asked_for_one_token() -> None:
    found, sent = margin(answer_of("cdk"), answer_of("cdn"))
    assert found.log_prob_difference == pytest.approx(3.0)  # k is 20, n is 23
    assert sent[-1] == (
        "tensorrt_llm",
        {
            "input_ids": [10, 11, 12, 13],
            "input_lengths": [4],
            "request_output_len": [1],
            "runtime_top_k": [1],
            "return_generation_logits": [True],
        },
    )
    found, sent = margin(answer_of("", (30, 20)), answer_of("", (30, 24)))
    assert (found.log_prob_difference, sent[-1][1]["input_ids"]) == (4.0, [10, 11, 30])


def test_an_answer_that_ended_is_compared_by_the_token_that_ends_it() -> None:
    found, _ = margin(answer_of("cd"), answer_of("cdk"))
    assert found.log_prob_difference == -1.0  # 21 ends an answer, k is 20


@pytest.mark.parametrize(
    ("texts", "reply", "configs", "why"),
    [
        (("cx", "cy"), table, None, "prefers a third token"),
        (("cd", "cd"), table, None, "same tokens"),
        (("ck", "cl"), table, (CONTROL, ENGINE), "'preprocessing' is not found"),
        (
            ("ck", "cl"),
            lambda model, inputs: table(model, inputs) if model == "preprocessing" else [{}],
            None,
            "generation_logits",
        ),
        (
            ("ck", "cl"),
            lambda model, inputs: (
                table(model, inputs)
                if model == "preprocessing"
                else [{"generation_logits": np.zeros((1, 1, 1, 5), np.float32)}]
            ),
            None,
            "too few",
        ),
    ],
)
def test_a_margin_that_cannot_be_had_is_unknown_with_its_reason(
    texts: tuple[str, str], reply: Reply, configs: Any, why: str
) -> None:
    others = {"configs": configs} if configs else {}
    found, _ = margin(answer_of(texts[0]), answer_of(texts[1]), reply, **others)
    assert found.log_prob_difference is None
    assert why in found.why_unknown


def test_an_engine_that_fails_leaves_the_margin_unknown() -> None:
    def broken(model: str, inputs: Tensors) -> list[Tensors]:
        if model == "tensorrt_llm":
            raise EngineFailedError("the engine was built without logits")
        return table(model, inputs)

    found, _ = margin(answer_of("ck"), answer_of("cl"), broken)
    assert found.log_prob_difference is None and "built without logits" in found.why_unknown


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidRequestError, match="--tokenizer"):
        TokenizerFile(tmp_path / "tokenizer.json")


# All parts together.


def reply_with(candidate: str, **counts: int) -> Reply:
    def reply(model: str, inputs: Tensors) -> list[Tensors]:
        if model in ("ensemble", "tensorrt_llm_bls"):
            return text("cdk" if model == "ensemble" else candidate, **counts)
        return table(model, inputs)

    return reply


def verify(reply: Reply, **configs: Any) -> tuple[str, str]:
    prompts = tuple(Prompt(str(index), "ab") for index in range(300))
    foreign = Foreign("http://nowhere:1", prompts, num_at_once=1)
    _, section, not_checked = verify_foreign(foreign, connect=lambda url: FakeCalls(reply, **configs))
    return section.verdict, section.summary + not_checked.summary


def test_equal_texts_pass_and_wrong_ones_fail() -> None:
    assert verify(reply_with("cdk"))[0] == "pass"
    assert verify(reply_with("cdq"))[0] == "fail"


def test_differences_that_nothing_can_weigh_are_no_pass() -> None:
    verdict, summary = verify(reply_with("cdq"), configs=(CONTROL, CANDIDATE))
    assert verdict == "inconclusive"
    assert "300 of unknown margin" in summary


def test_a_candidate_that_tells_nothing_of_its_drafts_passes_with_that_named() -> None:
    silent = config("tensorrt_llm_bls", TEXT, {"text_output": "STRING"})
    verdict, summary = verify(reply_with("cdk"), configs=(CONTROL, silent))
    assert verdict == "pass"
    assert "tensorrt_llm_bls has no input top_k" in summary
    assert "tensorrt_llm_bls has no input num_draft_tokens" in summary
    assert "whether tensorrt_llm_bls drafted anything" in summary


def test_a_candidate_that_never_drafts_fails() -> None:
    verdict, summary = verify(reply_with("cdk", total_draft_tokens=0))
    assert verdict == "fail" and "nothing was drafted" in summary
    assert verify(reply_with("cdk", total_draft_tokens=3))[0] == "pass"
