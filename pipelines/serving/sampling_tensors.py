"""How tokens are chosen, as tensors: names and types in one table, for whoever reads or sends them.

At the engines the names are TensorRT-LLM's; at the text level they are those of ``SamplingParams``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.serving.inputs import Inputs, read_scalar
from pipelines.speculation.sampling_params import SamplingParams, draw_seed


@dataclass(frozen=True)
class _Scalar:
    """One number of ``SamplingParams``: its names at both levels, and its types in Python and on the wire."""

    name: str
    engine_name: str
    kind: type[Any]
    dtype: npt.DTypeLike


_SCALARS = (
    _Scalar("temperature", "temperature", float, np.float32),
    _Scalar("top_k", "runtime_top_k", int, np.int32),
    _Scalar("top_p", "runtime_top_p", float, np.float32),
    _Scalar("min_p", "min_p", float, np.float32),
    _Scalar("repetition_penalty", "repetition_penalty", float, np.float32),
    _Scalar("presence_penalty", "presence_penalty", float, np.float32),
    _Scalar("frequency_penalty", "frequency_penalty", float, np.float32),
    _Scalar("min_tokens", "min_tokens", int, np.int32),
    _Scalar("seed", "seed", int, np.uint64),
)
_BIAS_IDS, _BIAS_VALUES = "logit_bias_ids", "logit_bias_values"
_OTHERS = (
    *(_BIAS_IDS, _BIAS_VALUES, "return_log_probs", "num_log_probs"),
    *("end_id", "num_draft_tokens", "use_draft_logits", "session_id"),
)

PASSED_ON: Mapping[str, str] = {
    **{scalar.name: scalar.engine_name for scalar in _SCALARS},
    **{name: name for name in _OTHERS},
}
"""Inputs of the text level that go to an engine as they are: name there -> name at the engine."""


def read_sampling(inputs: Inputs) -> SamplingParams:
    """The sampling that an engine's tensors ask for; without ``seed`` one is drawn.

    Raises:
        InvalidRequestError: A tensor has a shape without meaning. Ranges are checked later.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    given = {
        scalar.name: read_scalar(inputs, scalar.engine_name, scalar.kind, defaults[scalar.name])
        for scalar in _SCALARS
    }
    if "seed" not in inputs:
        given["seed"] = draw_seed()
    return SamplingParams(**given, logit_bias=_read_logit_bias(inputs))


def sampling_tensors(sampling: SamplingParams) -> dict[str, npt.NDArray[Any]]:
    """The tensors for which ``read_sampling`` gives the same again."""
    tensors: dict[str, npt.NDArray[Any]] = {
        scalar.engine_name: np.array([[getattr(sampling, scalar.name)]], dtype=scalar.dtype)
        for scalar in _SCALARS
    }
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        tensors[_BIAS_IDS] = np.array([ids], dtype=np.int32)
        tensors[_BIAS_VALUES] = np.array([values], dtype=np.float32)
    return tensors


def _read_logit_bias(inputs: Inputs) -> tuple[tuple[int, float], ...]:
    ids, values = (
        inputs[name].reshape(-1).tolist() if name in inputs else [] for name in (_BIAS_IDS, _BIAS_VALUES)
    )
    if len(ids) != len(values):
        raise InvalidRequestError(
            "logit_bias_ids and logit_bias_values have different lengths",
            values=f"{len(ids)} ids, {len(values)} values",
            limit="one value for each id",
            remedy="send both with the same length, or neither",
        )
    return tuple(zip(ids, values, strict=True))
