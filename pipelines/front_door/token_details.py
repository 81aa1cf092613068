"""Writes what a response says of its tokens: log probabilities, and where they came from."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pipelines.front_door.messages.message import THINK_BEGIN, THINK_END
from pipelines.front_door.served_model import ServedModel
from pipelines.wire.chunk import TOKEN_SOURCES, Chunk, TopLogProbs


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


def texts_of_tokens(model: ServedModel, chunk: Chunk) -> list[str]:
    """Return the text of each token; the joined texts are the chunk's.

    A character of several tokens belongs to the one that completes it. Tokens behind a stop word have none.

    Args:
        model: The model.
        chunk: A chunk; its tokens end at a character.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    vocabulary = model.tokenizer.vocabulary
    texts: list[str] = []
    left = chunk.text
    for token_id in chunk.output_ids:
        text = decoder.decode(vocabulary.join([token_id]))
        if not text and (special := vocabulary.special.get(token_id)):
            text = special.decode() if left.startswith(special.decode()) else ""
        text, left = left[: len(text)], left[len(text) :]
        texts.append(text)
    if texts:  # a character that the answer's end cut off
        texts[-1] += decoder.decode(b"", final=True)[: len(left)]
    return texts


def runs_by_source(model: ServedModel, chunk: Chunk) -> list[dict[str, Any]]:
    """Return the text of a chunk in runs of tokens from one source; the joined texts are the chunk's."""
    runs: list[dict[str, Any]] = []
    for text, number in zip(texts_of_tokens(model, chunk), chunk.token_sources, strict=True):
        source = TOKEN_SOURCES[number]
        if not runs or runs[-1]["source"] != source:
            runs.append({"source": source, "num_tokens": 0, "text": ""})
        runs[-1]["num_tokens"] += 1
        runs[-1]["text"] += text
    return runs


class ThoughtTokens:
    """Counts the tokens of one answer up to the end of its thoughts; all, if it has none.

    Attributes:
        number: Their number so far.

    Args:
        model: The model.
    """

    def __init__(self, model: ServedModel) -> None:
        self.number = 0
        self._model = model
        self._end = b""
        self._mark = (model.style(with_tools=False).thoughts or (THINK_BEGIN, THINK_END))[1].encode()

    def add(self, output_ids: Sequence[int]) -> None:
        """Count the next tokens."""
        for token_id in output_ids:
            if self._mark in self._end:
                return
            self.number += 1
            self._end = self._end[-len(self._mark) :] + self._model.bytes_of(token_id)
