"""Defines a request of a client. ``fields.json`` says what each field means, and which values it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from pipelines.errors import InvalidRequestError

KEY_HEADER = "draftproof-key"
"""Name of the HTTP header, and of the gRPC metadata, with the key of a server."""

MAX_ID_BYTES = 256  # for request ids, session ids and names of arms; a UUID has 36

_INT32_LIMIT = 2**31
_UINT64_LIMIT = 2**64


@dataclass(frozen=True)
class CompletionRequest:
    """A text or tokens to continue, and the sampling parameters.

    The server validates the values; the client refuses only what cannot be transmitted.
    """

    prompt: str = ""
    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_words: tuple[str, ...] = ()
    end_id: int | None = None
    num_draft_tokens: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    guide: tuple[str, str] | None = None
    num_log_probs: int | None = None
    return_prompt_log_probs: bool = False
    use_draft_logits: bool = False
    session_id: str = ""
    cache_salt: str = ""
    prediction: str = ""
    arm: str = ""
    prompt_ids: tuple[int, ...] = ()
    add_special_tokens: bool = True
    parse_special_tokens: bool = False
    skip_special_tokens: bool = True
    resume_output_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be transmitted: other integers than the tensors have, NaN, lone surrogates.

        Raises:
            InvalidRequestError: A value cannot be transmitted.
        """
        for name in ("max_tokens", "top_k", "min_tokens", "end_id", "num_draft_tokens", "num_log_probs"):
            _check_integer(name, getattr(self, name), -_INT32_LIMIT, _INT32_LIMIT)
        _check_integer("seed", self.seed, 0, _UINT64_LIMIT)
        for name in ("prompt_ids", "resume_output_ids", "stop_token_ids"):
            _check_integers(name, getattr(self, name))
        _check_integers("logit_bias", [token_id for token_id, _ in self.logit_bias])
        for name in ("temperature", "top_p", "min_p"):
            _check_finite(name, getattr(self, name))
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            _check_finite(name, getattr(self, name))
        for _, value in self.logit_bias:
            _check_finite("logit_bias", value)
        for name in ("prompt", "session_id", "cache_salt", "prediction", "arm"):
            _check_text(name, getattr(self, name))
        for name in ("stop_words", "bad_words", "guide"):
            for text in getattr(self, name) or ():
                _check_text(name, text)


def _check_integers(name: str, values: Sequence[Any]) -> None:
    kinds = set(map(type, values))
    are_integers = bool(kinds) and kinds <= {int, np.int32, np.int64}
    if are_integers and min(values) >= -_INT32_LIMIT and max(values) < _INT32_LIMIT:
        return
    for value in values:
        _check_integer(name, value, -_INT32_LIMIT, _INT32_LIMIT)


def _check_integer(name: str, value: Any, minimum: int, limit: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):  # numpy's integers are such too
        raise _cannot_be_sent(name, f"{name}={value!r} is not an integer", f"send an integer as {name}")
    number = int(value)
    if not minimum <= number < limit:
        remedy = f"send a smaller {name}" if number >= limit else f"send a larger {name}"
        raise _cannot_be_sent(name, f"{name}={value} is not within {minimum} to {limit - 1}", remedy)


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise _cannot_be_sent(name, f"{name}={value} is not finite", "send a finite number")


def _check_text(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"code point {text[error.start]!r} at {error.start} is a lone surrogate, which UTF-8 lacks"
        raise _cannot_be_sent(name, problem, "decode the source text with errors='replace'") from error


def _cannot_be_sent(name: str, problem: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} cannot be sent: {problem}", remedy)
