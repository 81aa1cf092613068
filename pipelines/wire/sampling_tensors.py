"""Reads sampling parameters from tensors.

Engines use TensorRT-LLM's names, text models those of ``SamplingParams``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES, SamplingParams, draw_seed
from pipelines.wire.tensors import Inputs, read_scalar


@dataclass(frozen=True)
class _Scalar:
    """One number of ``SamplingParams``: its names at both levels and its type."""

    name: str
    engine_name: str
    kind: type[Any]


_SCALARS = (
    _Scalar("temperature", "temperature", float),
    _Scalar("top_k", "runtime_top_k", int),
    _Scalar("top_p", "runtime_top_p", float),
    _Scalar("min_p", "min_p", float),
    _Scalar("repetition_penalty", "repetition_penalty", float),
    _Scalar("presence_penalty", "presence_penalty", float),
    _Scalar("frequency_penalty", "frequency_penalty", float),
    _Scalar("min_tokens", "min_tokens", int),
    _Scalar("seed", "seed", int),
)
BIAS_TENSORS = "logit_bias_ids", "logit_bias_values"
GUIDE_TENSORS = "guided_decoding_guide_type", "guided_decoding_guide"
_OTHERS = (
    *(*BIAS_TENSORS, *GUIDE_TENSORS, "return_log_probs", "num_log_probs"),
    "return_prompt_log_probs",
    *("end_id", "num_draft_tokens", "use_draft_logits", "session_id"),
)

PASSED_ON: Mapping[str, str] = {
    **{scalar.name: scalar.engine_name for scalar in _SCALARS},
    **{name: name for name in _OTHERS},
}
"""Inputs of text models that are passed on to an engine: name at the text model -> name at the engine."""


def read_sampling(inputs: Inputs) -> SamplingParams:
    """Read the sampling parameters of a request to an engine; without ``seed`` one is drawn.

    Raises:
        InvalidRequestError: A tensor has an invalid shape. Ranges are checked later.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    given = {
        scalar.name: read_scalar(inputs, scalar.engine_name, scalar.kind, defaults[scalar.name])
        for scalar in _SCALARS
    }
    if "seed" not in inputs:
        given["seed"] = draw_seed()
    return SamplingParams(**given, logit_bias=_read_logit_bias(inputs))


def check_bias(inputs: Inputs) -> None:
    """Refuse a bias that is too long, or whose ids and values differ in number, before it is read.

    Raises:
        InvalidRequestError: There are more than ``MAX_LOGIT_BIASES`` entries, or the tensors differ in
            length.
    """
    num_ids, num_values = (inputs[name].size if name in inputs else 0 for name in BIAS_TENSORS)
    if num_ids != num_values:
        raise InvalidRequestError(
            "logit_bias_ids and logit_bias_values have different lengths",
            values=f"{num_ids} ids, {num_values} values",
            limit="one value for each id",
            remedy="send both with the same length, or neither",
        )
    if num_ids > MAX_LOGIT_BIASES:
        raise InvalidRequestError(
            "logit_bias has too many entries",
            values=f"{num_ids} ids",
            limit=f"at most {MAX_LOGIT_BIASES}",
            remedy="send the most important ones; use bad_words to forbid texts",
        )


def _read_logit_bias(inputs: Inputs) -> tuple[tuple[int, float], ...]:
    check_bias(inputs)
    ids, values = (inputs[name].reshape(-1).tolist() if name in inputs else [] for name in BIAS_TENSORS)
    return tuple(zip(ids, values, strict=True))
