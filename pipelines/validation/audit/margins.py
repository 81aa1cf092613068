"""Measure how certain the target was at the first difference of two answers, from its logits there.

The server's engine gets the common start of both answers (teacher forcing) and returns one token with its
logits. If that is not possible, the margin is unknown, which never counts as a tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.client import Generation
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.validation.audit.arms import Margin
from pipelines.validation.audit.foreign_server import ForeignServer, ModelNames


class Tokens(Protocol):
    """Converts text to token ids of the engine."""

    end_id: int | None

    def encode(self, text: str) -> list[int]:
        """Return the token ids that the server's preprocessing would return."""


class TokenizerFile:
    """Tokenizer from a ``tokenizer.json`` on this machine.

    Raises:
        InvalidRequestError: The file cannot be read.
    """

    end_id: int | None = None  # the file does not specify which special token ends an answer

    def __init__(self, path: Path) -> None:
        from pipelines.text.prompt_tokenizer import PromptTokenizer

        try:
            self._tokenizer = PromptTokenizer(path.read_bytes(), path)
        except Exception as error:  # the package tokenizers raises no specific class
            raise InvalidRequestError(
                "the tokenizer cannot be read",
                values=f"{path}: {error}",
                limit="a tokenizer.json of Hugging Face tokenizers",
                remedy="name another file with --tokenizer, or omit it",
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self._tokenizer.encode(text)


class ServerTokens:
    """Tokenizer that calls the server's model ``preprocessing``, with NVIDIA's tensors or ours."""

    def __init__(self, server: ForeignServer, model: str) -> None:
        self._server = server
        self._model = model
        self.end_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        if "QUERY" in self._server.spec(self._model).inputs:
            outputs = self._server.infer(self._model, {"QUERY": [text], "REQUEST_OUTPUT_LEN": [1]})
            if "OUT_END_ID" in outputs:
                self.end_id = int(outputs["OUT_END_ID"].ravel()[0])
            return [int(token) for token in outputs["INPUT_ID"].ravel()]
        outputs = self._server.infer(self._model, {"text_input": [text], "max_tokens": [1]})
        return [int(token) for token in outputs["input_ids"].ravel()]


class Replay:
    """Requests logits of the engine after a given text.

    Args:
        server: Server that gave the answers.
        names: Names of its models.
        tokens: Tokenizer; None for the server's ``preprocessing``.
    """

    def __init__(self, server: ForeignServer, names: ModelNames, tokens: Tokens | None = None) -> None:
        self._server = server
        self._engine = names.engine
        self._tokens = tokens or ServerTokens(server, names.preprocessing)

    def margin(self, prompt: Prompt, expected: Generation, actual: Generation) -> Margin:
        """Compare the two tokens at the first difference of two answers to ``prompt``."""
        try:
            return self._margin(prompt.text, expected, actual)
        except (DraftproofError, KeyError) as error:
            return Margin(None, f"the engine did not return logits: {error}")

    def _margin(self, prompt: str, expected: Generation, actual: Generation) -> Margin:
        prompt_ids = self._tokens.encode(prompt)
        if expected.output_ids or actual.output_ids:
            ids, other_ids = [*prompt_ids, *expected.output_ids], [*prompt_ids, *actual.output_ids]
        else:
            ids, other_ids = (self._tokens.encode(prompt + answer.text) for answer in (expected, actual))
        place = _first_difference(ids, other_ids)
        if place < len(prompt_ids):
            return Margin(None, "the answers change how their prompt is tokenized")
        if place == len(ids) == len(other_ids):
            return Margin(None, "both answers have the same tokens")
        pair = [
            sequence[place] if place < len(sequence) else self._tokens.end_id for sequence in (ids, other_ids)
        ]
        if None in pair:
            return Margin(None, "one answer had ended, and its end token is unknown")
        logits = self._logits(ids[:place])
        return _margin_of(logits, *(int(token) for token in pair if token is not None))

    def _logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """Request the logits of the token after ``token_ids``: float64 [vocabulary]."""
        wanted: dict[str, list[Any]] = {
            "input_ids": list(token_ids),
            "input_lengths": [len(token_ids)],
            "request_output_len": [1],
            "runtime_top_k": [1],
            "return_generation_logits": [True],
        }
        outputs = self._server.infer(self._engine, wanted)
        return np.asarray(outputs["generation_logits"], np.float64).ravel()


def _margin_of(logits: npt.NDArray[np.float64], expected_id: int, actual_id: int) -> Margin:
    if max(expected_id, actual_id) >= len(logits):
        return Margin(None, f"the engine returned {len(logits)} logits, too few for these tokens")
    likeliest = int(np.argmax(logits))
    difference = float(logits[expected_id] - logits[actual_id])
    if likeliest not in (expected_id, actual_id):
        return Margin(None, f"the engine now prefers a third token, {likeliest}")
    if not math.isfinite(difference):
        return Margin(None, "a logit is infinite")
    return Margin(difference)


def _first_difference(ids: Sequence[int], other_ids: Sequence[int]) -> int:
    place = 0
    while place < min(len(ids), len(other_ids)) and ids[place] == other_ids[place]:
        place += 1
    return place
