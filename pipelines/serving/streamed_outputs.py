"""What each response of a text model carries: its text and tokens, and the rest where it says something.

Each tensor of a response costs Triton a piece of shared memory. So what concerns drafting comes
with those responses whose rounds drafted something, what is about the whole answer comes with its last
response, and log probabilities come where they were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from pipelines.serving.triton_wire import text_tensor
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.text.vocabulary import Vocabulary

_ALWAYS = frozenset({"output_ids", "sequence_length", "finish_reason"})
_OF_LOG_PROBS = frozenset({"output_log_probs", "cum_log_probs", "top_log_prob_ids", "top_log_probs"})
_OF_DRAFTING = frozenset(
    {
        "accepted_mask",
        "num_rounds",
        "total_draft_tokens",
        "total_accepted_draft_tokens",
        "accepted_per_position",
        "acceptance_rate",
    }
)

Tensors = dict[str, npt.NDArray[Any]]


class StreamedOutputs:
    """Makes the responses of one answer from those of an engine.

    Args:
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._num_drafted = 0

    def of(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> Tensors:
        """The outputs of the next response: ``text_output`` and those of the engine that belong to it."""
        names = set(_ALWAYS)
        if outputs["output_log_probs"].size:
            names |= _OF_LOG_PROBS
        if self._has_drafted(outputs):
            names |= _OF_DRAFTING
        carried = {name: array for name, array in outputs.items() if is_final or name in names}
        carried["text_output"] = text_tensor(spell(outputs, self._vocabulary))
        return carried

    def _has_drafted(self, outputs: Mapping[str, npt.NDArray[Any]]) -> bool:
        if "total_draft_tokens" not in outputs:
            return False
        before, self._num_drafted = self._num_drafted, int(outputs["total_draft_tokens"].item())
        return self._num_drafted != before


def spell(outputs: Mapping[str, npt.NDArray[Any]], vocabulary: Vocabulary) -> str:
    """Text of one chunk: the first ``text_length`` bytes that ``output_ids`` spell."""
    data = vocabulary.join(outputs["output_ids"].reshape(-1).tolist())
    return decode_chunk(data[: int(outputs["text_length"].item())])
