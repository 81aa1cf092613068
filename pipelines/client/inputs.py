"""Turns a request into the tensors of a text model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.wire.request import CompletionRequest


@dataclass(frozen=True)
class Input:
    """One tensor [1, n] of a request.

    Attributes:
        name: Its name.
        datatype: KServe's name of its type.
        values: Its n values.
        is_list: Whether it may have any number of values, and not just one.
    """

    name: str
    datatype: str
    values: Sequence[Any] | npt.NDArray[np.int32]
    is_list: bool = False


def inputs_of(request: CompletionRequest, *, streaming: bool) -> list[Input]:
    """Return the tensors of a request; what has its default is left out.

    Raises:
        InvalidRequestError: A value cannot be transmitted.
    """
    request.check()
    found = [
        Input("max_tokens", "INT32", [request.max_tokens]),
        Input("stream", "BOOL", [streaming]),
    ]

    def add(name: str, datatype: str, value: Any, default: Any) -> None:
        if value != default:
            found.append(Input(name, datatype, [value]))

    def add_list(name: str, datatype: str, values: Any) -> None:
        if len(values):
            found.append(Input(name, datatype, values, is_list=True))

    if request.prompt or not len(request.prompt_ids):
        found.append(Input("text_input", "BYTES", [request.prompt]))
    add_list("input_ids", "INT32", request.prompt_ids)
    add("temperature", "FP32", request.temperature, 0.0)
    add("top_k", "INT32", request.top_k, 0)
    add("top_p", "FP32", request.top_p, 1.0)
    add("min_p", "FP32", request.min_p, 0.0)
    add("seed", "UINT64", request.seed, None)
    add("repetition_penalty", "FP32", request.repetition_penalty, 1.0)
    add("presence_penalty", "FP32", request.presence_penalty, 0.0)
    add("frequency_penalty", "FP32", request.frequency_penalty, 0.0)
    add("min_tokens", "INT32", request.min_tokens, 0)
    add("end_id", "INT32", request.end_id, None)
    add_list("stop_token_ids", "INT32", request.stop_token_ids)
    add_list("stop_words", "BYTES", request.stop_words)
    add_list("bad_words", "BYTES", request.bad_words)
    add_list("logit_bias_ids", "INT32", [token_id for token_id, _ in request.logit_bias])
    add_list("logit_bias_values", "FP32", [value for _, value in request.logit_bias])
    kind, guide = request.guide or ("", "")
    add("guided_decoding_guide_type", "BYTES", kind, "")
    add("guided_decoding_guide", "BYTES", guide, "")
    add("return_log_probs", "BOOL", request.num_log_probs is not None, False)
    add("num_log_probs", "INT32", request.num_log_probs, None)
    add("return_prompt_log_probs", "BOOL", request.return_prompt_log_probs, False)
    add("num_draft_tokens", "INT32", request.num_draft_tokens, None)
    add("use_draft_logits", "BOOL", request.use_draft_logits, False)
    add("session_id", "BYTES", request.session_id, "")
    add("cache_salt", "BYTES", request.cache_salt, "")
    add("prediction", "BYTES", request.prediction, "")
    add("arm", "BYTES", request.arm, "")
    add("add_special_tokens", "BOOL", request.add_special_tokens, True)
    add("parse_special_tokens", "BOOL", request.parse_special_tokens, False)
    add("skip_special_tokens", "BOOL", request.skip_special_tokens, True)
    add_list("resume_output_ids", "INT32", request.resume_output_ids)
    return found
