"""Declares the outputs of an answer, once, and cuts and joins the responses that carry them.

``config.pbtxt``, what a response carries, and how responses are joined follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import Tensors
from pipelines.wire.tensors import scalar_tensor, text_tensor


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of a response.

    Attributes:
        name: Name at engines and text models.
        datatype: KServe's name of the type.
        dims: Shape without the batch dimension; -1 for any size, a text for a placeholder.
        carried: The responses that carry it to a client: all, the last one, or those with new log
            probabilities, log probabilities of the prompt, or drafted tokens.
        token_axis: Axis with one entry for each new token; None for none.
        prompt_axis: Axis with one entry for each token of the prompt; None for none.
        is_sum: Whether it counts from the beginning of the answer.
        part: Who has it: all, only engines with a draft, engines, text models, the router.
    """

    name: str
    datatype: str
    dims: tuple[int | str, ...] = (1,)
    carried: Literal["always", "at_end", "log_probs", "prompt", "drafted"] = "at_end"
    token_axis: int | None = None
    prompt_axis: int | None = None
    is_sum: bool = False
    part: Literal["all", "draft", "engine", "text", "router"] = "all"

    @property
    def config(self) -> str:
        """Return its line in ``config.pbtxt``."""
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        dims = ", ".join(map(str, self.dims))
        return f'output [{{ name: "{self.name}" data_type: TYPE_{kind} dims: [{dims}] }}]'


OUTPUTS: Mapping[str, OutputTensor] = {
    tensor.name: tensor
    for tensor in (
        OutputTensor("text_output", "BYTES", carried="always", part="text"),
        OutputTensor("output_ids", "INT32", (1, -1), "always", token_axis=2),
        OutputTensor("sequence_length", "INT32", carried="always", is_sum=True),
        OutputTensor("finish_reason", "BYTES", carried="always"),
        OutputTensor("text_length", "INT32", part="engine"),
        OutputTensor("output_seed", "UINT64"),
        OutputTensor("cached_prompt_tokens", "INT32"),
        OutputTensor("output_log_probs", "FP32", (1, -1), "log_probs", token_axis=2),
        OutputTensor("cum_log_probs", "FP32", carried="log_probs", is_sum=True),
        OutputTensor("top_log_prob_ids", "INT32", (-1, -1), "log_probs", token_axis=1),
        OutputTensor("top_log_probs", "FP32", (-1, -1), "log_probs", token_axis=1),
        OutputTensor("prompt_log_probs", "FP32", (1, -1), "prompt", prompt_axis=2),
        OutputTensor("prompt_top_log_prob_ids", "INT32", (-1, -1), "prompt", prompt_axis=1),
        OutputTensor("prompt_top_log_probs", "FP32", (-1, -1), "prompt", prompt_axis=1),
        OutputTensor("accepted_mask", "BOOL", (-1,), "drafted", token_axis=1, part="draft"),
        OutputTensor("token_sources", "INT32", (-1,), "drafted", token_axis=1, part="draft"),
        OutputTensor("num_rounds", "INT32", carried="drafted", part="draft"),
        OutputTensor("total_draft_tokens", "INT32", carried="drafted", part="draft"),
        OutputTensor("total_accepted_draft_tokens", "INT32", carried="drafted", part="draft"),
        OutputTensor("accepted_prediction_tokens", "INT32", carried="drafted", part="draft"),
        OutputTensor("rejected_prediction_tokens", "INT32", carried="drafted", part="draft"),
        OutputTensor("accepted_per_position", "INT32", ("${max_draft_len}",), "drafted", part="draft"),
        OutputTensor("drafted_per_round", "INT32", (-1,), part="draft"),
        OutputTensor("accepted_per_round", "INT32", (-1,), part="draft"),
        OutputTensor("acceptance_rate", "FP32", carried="drafted", part="draft"),
        OutputTensor("draft_length", "BYTES", part="draft"),
        OutputTensor("arm", "BYTES", part="router"),
        OutputTensor("fallback_from", "BYTES", part="router"),
    )
}
"""Outputs by name. The counts of drafting in a continued answer are those of the rest."""


def declared_outputs(model: str) -> list[str]:
    """Return the outputs of a model as lines of ``config.pbtxt``.

    Args:
        model: ``text``, ``ensemble``, ``speculative`` or ``target_alone``.
    """
    parts = {
        "text": ("all", "draft", "text", "router"),
        "ensemble": ("all", "draft", "text"),
        "speculative": ("all", "draft", "engine"),
        "target_alone": ("all", "engine"),
    }[model]
    return [tensor.config for tensor in OUTPUTS.values() if tensor.part in parts]


_BY_TOKEN = {name: tensor.token_axis for name, tensor in OUTPUTS.items() if tensor.token_axis is not None}
_BY_PROMPT_TOKEN = {name: each.prompt_axis for name, each in OUTPUTS.items() if each.prompt_axis is not None}
_SUMS = tuple(name for name, tensor in OUTPUTS.items() if tensor.is_sum)

Response = tuple[Tensors, bool]
"""Outputs of one response of an engine, and whether it is the last."""


def without_first(response: Response, num_tokens: int, vocabulary: Vocabulary) -> Response:
    """Return a response without its first tokens, their text, and everything about the prompt."""
    outputs, is_last = response
    ids = outputs["output_ids"].reshape(-1).tolist()[:num_tokens]
    text_length = max(0, int(outputs["text_length"].item()) - len(vocabulary.join(ids)))
    cut: Tensors = {"text_length": scalar_tensor(text_length, np.int32)}
    for name, axis in _BY_TOKEN.items():
        if name in outputs and outputs[name].size:
            cut[name] = np.delete(outputs[name], np.s_[:num_tokens], axis=axis)
    for name, axis in _BY_PROMPT_TOKEN.items():
        if name in outputs:  # the client has them
            cut[name] = np.delete(outputs[name], np.s_[:], axis=axis)
    return {**outputs, **cut}, is_last


def joined(responses: Sequence[Response]) -> Response:
    """Join all responses of an answer into one."""
    outputs, is_last = responses[-1]
    text_length = sum(int(each["text_length"].item()) for each, _ in responses)
    whole: Tensors = {"text_length": scalar_tensor(text_length, np.int32)}
    for name, axis in {**_BY_TOKEN, **_BY_PROMPT_TOKEN}.items():
        if name in outputs:
            whole[name] = np.concatenate([each[name] for each, _ in responses], axis=axis)
    return {**outputs, **whole}, is_last


def continued(response: Response, before: Response) -> Response:
    """Return a response of a continued answer with the sums of the whole; ``before`` came last before it."""
    outputs, is_last = response
    sums: Tensors = {
        name: (outputs[name] + before[0][name]).astype(outputs[name].dtype)
        for name in _SUMS
        if name in outputs
    }
    return {**outputs, **sums}, is_last


class TextOutputs:
    """Turns the responses of an engine into those of a text model.

    Each tensor of a response costs Triton a piece of shared memory, so a response carries only what is new.

    Args:
        vocabulary: Bytes of the tokens.
        skip_special_tokens: Whether special tokens are left out of the text.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True) -> None:
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._num_drafted = 0

    def of(self, response: Response) -> Response:
        """Return the outputs of the next response, with ``text_output``."""
        outputs, is_last = response
        carried = {"always"}
        if "prompt_log_probs" in outputs and outputs["prompt_log_probs"].size:
            carried.add("prompt")
        if outputs["output_log_probs"].size:
            carried.add("log_probs")
        if self._has_drafted(outputs):
            carried.add("drafted")
        chosen = {name: each for name, each in outputs.items() if is_last or OUTPUTS[name].carried in carried}
        text = spell(outputs, self._vocabulary, skip_special_tokens=self._skip_special_tokens)
        return {**chosen, "text_output": text_tensor(text)}, is_last

    def _has_drafted(self, outputs: Mapping[str, npt.NDArray[Any]]) -> bool:
        if "total_draft_tokens" not in outputs:
            return False
        before, self._num_drafted = self._num_drafted, int(outputs["total_draft_tokens"].item())
        return self._num_drafted != before


def spell(
    outputs: Mapping[str, npt.NDArray[Any]], vocabulary: Vocabulary, *, skip_special_tokens: bool = True
) -> str:
    """Return the first ``text_length`` bytes of a response's tokens as text; special ones do not count."""
    ids = outputs["output_ids"].reshape(-1).tolist()
    num_bytes = int(outputs["text_length"].item())
    if skip_special_tokens:
        return decode_chunk(vocabulary.join(ids)[:num_bytes])
    return decode_chunk(vocabulary.join_with_special(ids, num_bytes))
