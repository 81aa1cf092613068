"""The fields that all requests for text have, and their meaning for ``router``."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.answer_format import guide_of_format
from pipelines.front_door.messages.tools import Function
from pipelines.wire.request import CompletionRequest

MAX_LOG_PROBS = 20
"""Maximum number of alternatives per token: the models' limit, and that of OpenAI's API."""

SEED_BITS = 53  # exactly representable by JSON parsers that only have doubles


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of a stream.

    Attributes:
        include_usage: Send the numbers of tokens in a last event.
        continuous_usage_stats: vLLM's: send them in every event.
        include_obfuscation: Means nothing here: events are not padded.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False

    def usage_of_event(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return ``usage`` of an event before the last: none, ``null``, or the numbers so far."""
        if self.continuous_usage_stats:
            return {"usage": usage}
        return {"usage": None} if self.include_usage else {}


@dataclass(frozen=True, kw_only=True)
class PredictedPart:
    """A part of a prediction.

    Attributes:
        type: The only type.
        text: Its text.
    """

    type: Literal["text"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An answer that the client expects, such as a file before an edit.

    Attributes:
        type: The only type.
        content: A text, or parts that are joined.
    """

    type: Literal["content"]
    content: str | tuple[PredictedPart, ...]

    @property
    def whole(self) -> str:
        """The text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


@dataclass(frozen=True, kw_only=True)
class PassedOn:
    """Fields that reach the router as they are; None where a request leaves one out."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    num_draft_tokens: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    bad_words: tuple[str, ...] | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    arm: str | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: tuple[int, ...] | None = None


PASSED_ON = tuple(field.name for field in dataclasses.fields(PassedOn))


@dataclass(frozen=True, kw_only=True)
class SamplingFields(PassedOn):
    """The fields of OpenAI's API that all requests share, vLLM's further ones, and ours.

    Those that mean nothing here stand in ``requests.fields``. ``warnings`` says what of the request the
    answer does not follow.
    """

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    stop: JsonValue = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, JsonValue] | None = None
    prediction: Prediction | None = None

    # vLLM's
    ignore_eos: bool = False
    return_token_ids: bool = False
    structured_outputs: dict[str, JsonValue] | None = None

    # ours
    return_token_sources: bool = False

    warnings: Annotated[tuple[str, ...], configuration.from_reader] = ()

    form_field: ClassVar[str] = "response_format"

    @property
    def form(self) -> dict[str, JsonValue] | None:
        """The form of the answer's text, as ``response_format`` has it."""
        return self.response_format

    @property
    def warning_fields(self) -> dict[str, Any]:
        """The warnings as the field of an answer; no field without any."""
        return {"warnings": self.warnings} if self.warnings else {}

    @property
    def schemas(self) -> Iterator[tuple[str, str]]:
        """The places and texts of the schemas that the answer follows."""
        guide = guide_of_format(self.form)
        if guide is not None and guide[0] == "json_schema":
            yield self.form_field, guide[1]

    @property
    def functions(self) -> Sequence[Function]:
        """The functions that the model is told of."""
        return ()

    @property
    def guide_field(self) -> str:
        """The name of the field that decides the answer's guide."""
        if self.structured_outputs:
            return "structured_outputs"
        return self.form_field if guide_of_format(self.form) is not None else "tools"


def sampling_request(
    fields: SamplingFields, defaults: CompletionRequest, max_tokens: int
) -> CompletionRequest:
    """Return a request to ``router`` without prompt and log probabilities.

    Args:
        fields: Fields of the request.
        defaults: Values for the fields that it leaves out.
        max_tokens: Most output tokens.

    Raises:
        InvalidRequestError: A field has a value that cannot be sent; ``router`` checks the ranges.
    """
    chosen = {name: value for name in PASSED_ON if (value := getattr(fields, name)) is not None}
    if chosen.get("seed") == -1:  # vLLM's and llama.cpp's clients' way to ask for any
        del chosen["seed"]
    chosen.setdefault("seed", secrets.randbits(SEED_BITS))
    if chosen.get("top_k") == -1:  # vLLM's and OpenAI-style clients' way to write all tokens
        chosen["top_k"] = 0
    return replace(
        defaults,
        **chosen,
        max_tokens=max_tokens,
        stop_words=_stop_words(fields.stop),
        end_id=-1 if fields.ignore_eos else None,
        logit_bias=_logit_bias(fields.logit_bias or {}),
        prediction=fields.prediction.whole if fields.prediction else "",
    )


def checked_log_probs(field: str, number: int) -> int:
    """Return of how many likeliest tokens log probabilities are returned.

    Raises:
        InvalidRequestError: The models return at most ``MAX_LOG_PROBS``.
    """
    if not 0 <= number <= MAX_LOG_PROBS:
        raise InvalidRequestError(
            f"{field}={number} is out of range: 0 to {MAX_LOG_PROBS}", "ask for fewer alternatives per token"
        )
    return number


def _stop_words(stop: JsonValue) -> tuple[str, ...]:
    words = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidRequestError(
            f"stop={stop!r:.200} is neither a text nor a list of texts",
            "send the texts before which the answer ends",
        )
    return tuple(str(word) for word in words)


def _logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in bias):
        raise InvalidRequestError(
            f"logit_bias={bias!r:.200} has a key that is not a token id in decimal",
            "send token ids; POST /tokenize returns those of a text",
        )
    return tuple((int(name), value) for name, value in bias.items())
