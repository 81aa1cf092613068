"""Continues an answer of which the client has the first tokens, perhaps from another server.

A token depends on the prompt, the parameters, the seed and the output before it, so the rest of the answer is
the same to the bit as without the interruption (``docs/decisions/failover.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.tensors import Inputs, read_scalar, scalar_tensor

RESUME_INPUT = "resume_output_ids"


def resumed(
    whole: Mapping[str, npt.NDArray[Any]], output_ids: TokenIds, inputs: Inputs, vocabulary: Vocabulary
) -> dict[str, npt.NDArray[Any]]:
    """Return the request for the rest of an answer.

    Args:
        whole: The request for the whole answer, to an engine.
        output_ids: int32 [n], the tokens that the client has; in the vocabulary.
        inputs: The same request as the client sent it.
        vocabulary: Bytes of the tokens.

    Raises:
        InvalidRequestError: ``max_tokens`` leaves nothing to add, the output is complete, or it does not end
            with a whole chunk.
    """
    max_tokens = read_scalar(whole, "request_output_len", int, 0)
    if len(output_ids) >= max_tokens:
        raise InvalidRequestError(
            "nothing is left of the answer",
            values=f"{RESUME_INPUT} has {len(output_ids)} tokens, max_tokens={max_tokens}",
            limit="fewer than max_tokens, which counts the whole answer",
            remedy="raise max_tokens, or take the answer as complete",
        )
    stop_words: list[bytes] = inputs["stop_words"].reshape(-1).tolist() if "stop_words" in inputs else []
    _check_place(output_ids, stop_words, read_scalar(inputs, "min_tokens", int, 0), vocabulary)
    prompt_ids = whole["input_ids"]
    return {
        **whole,
        "input_ids": np.concatenate((prompt_ids, output_ids[np.newaxis]), axis=1),
        "input_lengths": scalar_tensor(prompt_ids.size + len(output_ids), np.int32),
        "prompt_length": scalar_tensor(prompt_ids.size, np.int32),
        "request_output_len": scalar_tensor(max_tokens - len(output_ids), np.int32),
    }


def _check_place(
    output_ids: TokenIds, stop_words: list[bytes], min_tokens: int, vocabulary: Vocabulary
) -> None:
    """Refuse an output after which the rest of the text could not be sent as it would have been."""
    text = vocabulary.join(output_ids[max(0, min_tokens) :].tolist())
    if cut_at_stop_word(text, stop_words) != text:
        raise InvalidRequestError(
            "the answer is complete: it contains a stop word",
            values=f"{RESUME_INPUT} has {len(output_ids)} tokens",
            limit="an answer ends at its first stop word",
            remedy="take the answer as complete, or send the stop words with which it began",
        )
    boundary = ChunkBoundary(vocabulary, stop_words, max(0, min_tokens))
    num_whole = len(boundary.release(output_ids.tolist(), is_final=False))
    if num_whole < len(output_ids):
        raise InvalidRequestError(
            f"{RESUME_INPUT} ends inside a character or a possible stop word",
            values=f"the last {len(output_ids) - num_whole} of {len(output_ids)} tokens",
            limit="the tokens of whole chunks, whose text the client has",
            remedy="leave these tokens out; the server generates them again",
        )
