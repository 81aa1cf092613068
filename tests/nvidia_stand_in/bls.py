"""``tensorrt_llm_bls``: NVIDIA's loop of draft and target, with its limits and an optional fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.nvidia_stand_in.engine import Refused, Tensors

Call = Callable[[str, Tensors, list[str]], Tensors]
"""(model, inputs, wanted outputs) -> outputs."""


def answer(inputs: Tensors, call: Call, fault: str) -> Tensors:
    """Answer one request in one response.

    Args:
        inputs: As the client sent them.
        call: Calls another model.
        fault: "" for none; "keeps_last_draft" keeps a last draft token that the target rejected.
    """

    def scalar(name: str, default: Any) -> Any:
        return inputs[name].ravel()[0] if name in inputs else default

    num_draft_tokens = int(scalar("num_draft_tokens", 0))
    if num_draft_tokens > 0:
        if "stream" not in inputs:
            raise Refused("'NoneType' object has no attribute 'any'")
        if scalar("stream", False):
            raise Refused("streaming is not supported with speculative decoding")
        if len(inputs["text_input"]) > 1:
            raise Refused("speculative decoding is not supported with batch size > 1")
    if scalar("exclude_input_in_output", False):
        raise Refused("this stand-in loses the prompt with exclude_input_in_output")
    if int(scalar("top_k", 0)) != 1:
        raise Refused("this stand-in answers greedily: top_k must be 1")
    prepared = call(
        "preprocessing",
        {"QUERY": inputs["text_input"], "REQUEST_OUTPUT_LEN": inputs["max_tokens"]},
        ["INPUT_ID", "OUT_END_ID"],
    )
    prompt = [int(token) for token in prepared["INPUT_ID"].ravel()]
    max_tokens = int(scalar("max_tokens", 0))
    num_drafted = 0
    if num_draft_tokens > 0:
        ids, num_drafted = _speculate(prompt, max_tokens, num_draft_tokens, call, fault)
    else:
        ids = _engine("tensorrt_llm", prompt, max_tokens, call)
    text = call(
        "postprocessing",
        {"TOKENS_BATCH": np.array([[ids]], np.int32), "SEQUENCE_LENGTH": np.array([[len(ids)]], np.int32)},
        ["OUTPUT"],
    )["OUTPUT"]
    outputs: Tensors = {"text_output": text}
    if scalar("return_perf_metrics", False):
        outputs["total_draft_tokens"] = np.array([[num_drafted]], np.int32)
    return outputs


def _speculate(
    prompt: list[int], max_tokens: int, num_draft_tokens: int, call: Call, fault: str
) -> tuple[list[int], int]:
    """Return prompt and answer, and the last round's draft tokens, which is what NVIDIA reports."""
    current, num_drafted = prompt, 0
    while True:
        count = min(num_draft_tokens, len(prompt) + max_tokens - len(current) - 1)
        drafts: list[int] = []
        if count > 0:
            drafted = _engine(
                "tensorrt_llm_draft", current, count, call, min_tokens=np.array([[count]], np.int32)
            )
            drafts = drafted[len(current) :]
            num_drafted = len(drafts)
        more = {"draft_input_ids": np.array([drafts], np.int32)} if drafts else {}
        verified = _engine("tensorrt_llm", current, len(drafts) + 1, call, **more)
        is_over = verified in (current, current + drafts) or len(verified) == len(prompt) + max_tokens
        if fault == "keeps_last_draft" and len(verified) == len(current) + len(drafts):
            verified = current + drafts
        current = verified
        if is_over:
            return current, num_drafted


def _engine(
    model: str, token_ids: list[int], max_tokens: int, call: Call, **more: npt.NDArray[Any]
) -> list[int]:
    inputs: Tensors = {
        "input_ids": np.array([token_ids], np.int32),
        "input_lengths": np.array([[len(token_ids)]], np.int32),
        "request_output_len": np.array([[max_tokens]], np.int32),
        "runtime_top_k": np.array([[1]], np.int32),
        **more,
    }
    outputs = call(model, inputs, ["output_ids", "sequence_length"])
    return [
        int(token) for token in outputs["output_ids"].ravel()[: int(outputs["sequence_length"].ravel()[0])]
    ]
