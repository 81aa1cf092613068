"""Selects the outputs of each response of a text model.

Each tensor of a response costs Triton a piece of shared memory, so a response carries only what has changed:
counts of drafting if its rounds drafted, log probabilities if requested, and outputs about the whole answer
with the last response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.tensors import text_tensor

_ALWAYS = frozenset({"output_ids", "sequence_length", "finish_reason"})
_OF_LOG_PROBS = frozenset({"output_log_probs", "cum_log_probs", "top_log_prob_ids", "top_log_probs"})
_OF_PROMPT = frozenset({"prompt_log_probs", "prompt_top_log_prob_ids", "prompt_top_log_probs"})
_OF_DRAFTING = frozenset(
    {
        "accepted_mask",
        "token_sources",
        "num_rounds",
        "total_draft_tokens",
        "total_accepted_draft_tokens",
        "accepted_per_position",
        "acceptance_rate",
    }
)

Tensors = dict[str, npt.NDArray[Any]]


class StreamedOutputs:
    """Converts the responses of an engine into those of a text model.

    Args:
        vocabulary: Bytes of the tokens.
        skip_special_tokens: Whether special tokens are left out of the text.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True) -> None:
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._num_drafted = 0

    def of(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> Tensors:
        """Return the outputs of the next response: ``text_output`` and the selected ones of the engine."""
        names = set(_ALWAYS)
        if "prompt_log_probs" in outputs and outputs["prompt_log_probs"].size:
            names |= _OF_PROMPT
        if outputs["output_log_probs"].size:
            names |= _OF_LOG_PROBS
        if self._has_drafted(outputs):
            names |= _OF_DRAFTING
        carried = {name: array for name, array in outputs.items() if is_final or name in names}
        text = spell(outputs, self._vocabulary, skip_special_tokens=self._skip_special_tokens)
        carried["text_output"] = text_tensor(text)
        return carried

    def _has_drafted(self, outputs: Mapping[str, npt.NDArray[Any]]) -> bool:
        if "total_draft_tokens" not in outputs:
            return False
        before, self._num_drafted = self._num_drafted, int(outputs["total_draft_tokens"].item())
        return self._num_drafted != before


def spell(
    outputs: Mapping[str, npt.NDArray[Any]], vocabulary: Vocabulary, *, skip_special_tokens: bool = True
) -> str:
    """Return the text of a chunk: the first ``text_length`` bytes of its tokens, special ones not counted."""
    ids = outputs["output_ids"].reshape(-1).tolist()
    num_bytes = int(outputs["text_length"].item())
    if skip_special_tokens:
        return decode_chunk(vocabulary.join(ids)[:num_bytes])
    return decode_chunk(vocabulary.join_with_special(ids, num_bytes))
