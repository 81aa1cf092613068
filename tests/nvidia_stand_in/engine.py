"""``tensorrt_llm`` and ``tensorrt_llm_draft``: token ids in and out; draft tokens are verified."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.nvidia_stand_in.language import END_ID, VOCAB_SIZE, logits_after

Tensors = dict[str, npt.NDArray[Any]]


class Refused(Exception):
    """Raised with the text of the error response."""


def answer(inputs: Tensors, kernel: int, *, is_draft: bool, is_decoupled: bool) -> Tensors:
    """Answer one request with the logits of ``kernel``, the number of one of the engine's kernels."""

    def scalar(name: str, default: Any) -> Any:
        return inputs[name].ravel()[0] if name in inputs else default

    if scalar("streaming", False) and not is_decoupled:
        raise Refused("Streaming is only supported if model is deployed using decoupled mode.")
    prompt = [int(token) for token in inputs["input_ids"].ravel()]
    if int(scalar("input_lengths", -1)) != len(prompt):
        raise Refused("input_lengths does not match input_ids")
    if int(scalar("runtime_top_k", 0)) != 1:
        raise Refused("this engine answers greedily: runtime_top_k must be 1")
    drafts: list[int] = []
    if "draft_input_ids" in inputs:
        drafts = [int(token) for token in inputs["draft_input_ids"].ravel()]
        if not drafts:
            raise Refused("Assertion failed: draft_input_ids must not be empty")
    max_tokens = int(scalar("request_output_len", 0))
    if max_tokens < 1:
        raise Refused("request_output_len must be at least 1")
    chosen, rows = _generate(prompt, drafts, max_tokens, int(scalar("min_tokens", 0)), kernel, is_draft)
    ids = chosen if scalar("exclude_input_in_output", False) else prompt + chosen
    outputs: Tensors = {
        "output_ids": np.array([[ids]], np.int32),
        "sequence_length": np.array([[len(ids)]], np.int32),
    }
    if scalar("return_generation_logits", False):
        outputs["generation_logits"] = np.stack(rows).reshape(1, 1, -1, VOCAB_SIZE)
    if scalar("return_perf_metrics", False):
        outputs["total_draft_tokens"] = np.array([[len(drafts)]], np.int32)
    return outputs


def _generate(
    prompt: list[int], drafts: list[int], max_tokens: int, min_tokens: int, kernel: int, is_draft: bool
) -> tuple[list[int], list[npt.NDArray[np.float32]]]:
    """Return new tokens with their logits; with draft tokens, the accepted ones and one more."""
    chosen: list[int] = []
    rows = []
    while len(chosen) < max_tokens:
        row = logits_after(prompt + chosen, kernel, is_draft=is_draft, is_verification=bool(drafts))
        if len(chosen) < min_tokens:
            row[END_ID] = -np.inf
        token = int(np.argmax(row))
        if token == END_ID:
            # If the first token is the end token, its logits are returned, because a replay asks for them.
            rows = rows or [row]
            break
        rows.append(row)
        chosen.append(token)
        place = len(chosen) - 1
        if drafts and (place >= len(drafts) or drafts[place] != token):
            break
    return chosen, rows
