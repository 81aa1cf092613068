"""Writes log probabilities as OpenAI does."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pipelines.client.generation import TopLogProbs
from pipelines.front_door.served_model import ServedModel


class CompletionLogProbs:
    """Writes the log probabilities of one answer of ``/v1/completions``, chunk by chunk.

    Args:
        model: The model.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def document(
        self,
        token_ids: Sequence[int],
        log_probs: Sequence[float | None],
        alternatives: Sequence[Sequence[tuple[int, float]] | None],
    ) -> dict[str, Any]:
        """Return ``logprobs`` of the next tokens; the first token of a prompt has none.

        ``text_offset`` counts the characters of the answer before each token. A character of several tokens
        counts with the last of them.
        """
        tokens = [token_text(self._model.bytes_of(token_id)) for token_id in token_ids]
        offsets = []
        for text in map(self._model.bytes_of, token_ids):
            if text and text[0] & 0xC0 != 0x80:  # it begins a character, so it completes none
                self._offset += len(self._decoder.decode(b"", final=True))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(text))
        return {
            "tokens": tokens,
            "token_logprobs": list(log_probs),
            "top_logprobs": [
                None
                if at_position is None
                else {token_text(self._model.bytes_of(token_id)): value for token_id, value in at_position}
                for at_position in alternatives
            ]
            or None,
            "text_offset": offsets,
        }


def chat_log_probs(
    model: ServedModel, token_ids: Sequence[int], log_probs: Sequence[float], alternatives: TopLogProbs
) -> dict[str, Any]:
    """Return ``logprobs`` of tokens as ``/v1/chat/completions`` has them."""
    at_positions = alternatives or ((),) * len(token_ids)
    return {
        "content": [
            {
                **_chat_token(model, token_id, log_prob),
                "top_logprobs": [_chat_token(model, *alternative) for alternative in at_position],
            }
            for token_id, log_prob, at_position in zip(token_ids, log_probs, at_positions, strict=True)
        ],
        "refusal": None,
    }


def token_text(text: bytes) -> str:
    r"""Return a token as text; OpenAI writes a part of a character as ``bytes:\xe2\x82``."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _chat_token(model: ServedModel, token_id: int, log_prob: float) -> dict[str, Any]:
    text = model.bytes_of(token_id)
    return {"token": token_text(text), "logprob": log_prob, "bytes": list(text)}
