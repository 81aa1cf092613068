"""The fields that all requests for text have, and their meaning for ``router``."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError, ModelNotFoundError
from pipelines.front_door.messages.answer_format import guide_of_format
from pipelines.front_door.served_model import SAMPLING_PARAMETERS, ServedModel
from pipelines.wire.request import CompletionRequest

MAX_CHOICES = 128
MAX_LOG_PROBS = 20
"""Maximum number of alternatives per token: the models' limit, and that of OpenAI's API."""
"""Most answers of one request: prompts times ``n``."""

_SEED_BITS = 53  # exactly representable by JSON parsers that only have doubles


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

    def usage_of_event(self, usage: dict[str, int]) -> dict[str, Any]:
        """Return ``usage`` of an event before the last: none, ``null``, or the numbers so far."""
        if self.continuous_usage_stats:
            return {"usage": usage}
        return {"usage": None} if self.include_usage else {}


@dataclass(frozen=True, kw_only=True)
class SamplingFields:
    """The fields of OpenAI's API that all requests share, vLLM's further ones, and ours.

    The fields at the end mean nothing here. Clients send them to every server, so they are not refused.
    """

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: JsonValue = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, JsonValue] | None = None

    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    structured_outputs: dict[str, JsonValue] | None = None

    # ours
    num_draft_tokens: int | None = None
    session_id: str = ""
    arm: str = ""
    return_token_sources: bool = False

    # without effect
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    priority: Any = None
    request_id: Any = None

    @property
    def guide_field(self) -> str:
        """Return the name of the field that decides the answer's guide; empty if none of these does."""
        if self.structured_outputs:
            return "structured_outputs"
        return "response_format" if guide_of_format(self.response_format) is not None else ""


def check_model(given: str, model: ServedModel) -> None:
    """Refuse a model that is not served; a request may leave the name out.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    if given not in ("", model.name):
        raise ModelNotFoundError(
            "no model of this name is served",
            values=f"model={given[:200]!r}",
            limit=f"model={model.name!r}",
            remedy="send a name that GET /v1/models lists",
        )


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
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError(
            "stream_options needs a stream",
            values="stream_options with stream=false",
            limit="stream=true",
            remedy="send stream=true, or leave stream_options out",
        )
    chosen = {
        name: getattr(defaults, name) if getattr(fields, name) is None else getattr(fields, name)
        for name in SAMPLING_PARAMETERS
    }
    if chosen["top_k"] == -1:  # vLLM's and OpenAI-style clients' way to write all tokens
        chosen["top_k"] = 0
    return CompletionRequest(
        max_tokens=max_tokens,
        **chosen,
        seed=secrets.randbits(_SEED_BITS) if fields.seed is None else fields.seed,
        stop_words=_stop_words(fields.stop),
        end_id=-1 if fields.ignore_eos else None,
        num_draft_tokens=fields.num_draft_tokens,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        min_tokens=fields.min_tokens,
        bad_words=fields.bad_words,
        logit_bias=_logit_bias(fields.logit_bias or {}),
        session_id=fields.session_id,
        arm=fields.arm,
        skip_special_tokens=fields.skip_special_tokens,
    )


def num_log_probs(is_asked: bool, top_logprobs: int | None, asking: str) -> int | None:
    """Return of how many likeliest tokens log probabilities are returned too; None to return none at all.

    Args:
        is_asked: Whether the request asks for log probabilities.
        top_logprobs: The field of this name.
        asking: How a request asks for them.

    Raises:
        InvalidRequestError: The request has ``top_logprobs`` and does not ask for them, or asks for too many.
    """
    if is_asked:
        return checked_log_probs("top_logprobs", top_logprobs or 0)
    if top_logprobs:
        raise InvalidRequestError(
            f"top_logprobs needs {asking}",
            values=f"top_logprobs={top_logprobs}",
            limit=f"a request with {asking}",
            remedy=f"send {asking}, or leave top_logprobs out",
        )
    return None


def checked_log_probs(field: str, number: int) -> int:
    """Return of how many likeliest tokens log probabilities are returned.

    Raises:
        InvalidRequestError: The models return at most ``MAX_LOG_PROBS``.
    """
    if not 0 <= number <= MAX_LOG_PROBS:
        raise InvalidRequestError(
            f"{field} is out of range",
            values=f"{field}={number}",
            limit=f"0 to {MAX_LOG_PROBS} alternatives per token",
            remedy="ask for fewer alternatives",
        )
    return number


def seed_of_choice(seed: int, number: int) -> int:
    """Return the seed of a choice; that of the first is the request's own."""
    if number == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def check_choices(num_prompts: int, n: int) -> None:
    """Refuse a request for no answer or too many.

    Raises:
        InvalidRequestError: ``n`` is out of range.
    """
    if n < 1 or num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            "n is out of range",
            values=f"n={n}, {num_prompts} prompts",
            limit=f"n at least 1, and at most {MAX_CHOICES} answers of one request",
            remedy="send several requests",
        )


def _stop_words(stop: JsonValue) -> tuple[str, ...]:
    words = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidRequestError(
            "stop has the wrong type",
            values=f"stop={stop!r:.200}",
            limit="a text or a list of texts",
            remedy="send the texts before which the answer ends",
        )
    return tuple(str(word) for word in words)


def _logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in bias):
        raise InvalidRequestError(
            "a key of logit_bias is not a token id",
            values=f"logit_bias={bias!r:.200}",
            limit="token ids in decimal",
            remedy="send token ids; POST /tokenize returns those of a text",
        )
    return tuple((int(name), value) for name, value in bias.items())
