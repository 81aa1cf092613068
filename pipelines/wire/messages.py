"""Defines the messages between router and engine, and their codec.

A message is four bytes with its length and a JSON document. The router sends one ``EngineRequest``; the
engine answers with a ``Reply`` when it has taken the request, then one for each chunk, and one for an error.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pipelines.errors import TransportError
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.wire.chunk import Chunk

MAX_BYTES = 1 << 28
"""Longest message: a prompt of a million tokens takes 7 MB, and its log probabilities up to 150 MB."""

_LENGTH = struct.Struct(">I")
_JSON = with_config(
    ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
)


@_JSON
@dataclass(frozen=True)
class EngineRequest:
    """A request for tokens.

    Attributes:
        input_ids: The known tokens: the prompt, then earlier output.
        max_tokens: Maximum number of output tokens.
        request_id: Id from the caller; need not be unique.
        timeout_us: Time limit in microseconds; 0 for none.
        streaming: Whether the answer is sent in chunks.
        prompt_length: Number of leading positions that are prompt; None if all are.
        sampling: Sampling parameters, with a seed.
        end_id: Replaces the engine's end tokens; a negative one means none. None for the engine's own.
        stop_token_ids: Further tokens that end the output.
        stop: Stop words.
        bad_words: Words that must not occur in the output.
        num_log_probs: Alternatives returned with log probabilities; None for no log probabilities.
        return_prompt_log_probs: Whether those of the prompt are returned too.
        guide: Type and text of what the output follows (``text.guides.Guide``); None for nothing.
        num_draft_tokens: Draft tokens per round; None for the server's default.
        use_draft_logits: Whether draft tokens are accepted by the ratio rule, with the draft's logits.
        prediction_ids: What the client expects as the answer; may be empty.
        session_id: Session whose requests share acceptance rates and earlier answers; "" for none.
        cache_salt: Only what requests with the same salt have computed is reused.
    """

    input_ids: tuple[int, ...]
    max_tokens: int
    request_id: str = ""
    timeout_us: int = 0
    streaming: bool = True
    prompt_length: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[bytes, ...] = ()
    bad_words: tuple[bytes, ...] = ()
    num_log_probs: int | None = None
    return_prompt_log_probs: bool = False
    guide: tuple[str, str] | None = None
    num_draft_tokens: int | None = None
    use_draft_logits: bool = False
    prediction_ids: tuple[int, ...] = ()
    session_id: str = ""
    cache_salt: str = ""


@_JSON
@dataclass(frozen=True)
class Reply:
    """What an engine answers; exactly one of these.

    Attributes:
        is_taken: The process has the request: if it ends now, the request may be the cause.
        chunk: New tokens.
        error: Why the request failed (``DraftproofError.to_wire``).
    """

    is_taken: bool = False
    chunk: Chunk | None = None
    error: str = ""


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (EngineRequest, Reply)}

_Message = TypeVar("_Message", EngineRequest, Reply)


def encoded(message: EngineRequest | Reply) -> bytes:
    """Encode a message.

    Raises:
        TransportError: It is too long, or a value is none of its field's.
    """
    try:
        document: bytes = _ADAPTERS[type(message)].dump_json(message, exclude_defaults=True, warnings="error")
    except ValueError as error:
        raise garbled(f"{error!r:.200}") from None
    if len(document) > MAX_BYTES:
        raise garbled(f"it has {len(document)} bytes, and at most {MAX_BYTES} are allowed")
    return _LENGTH.pack(len(document)) + document


def decoded(kind: type[_Message], document: bytes) -> _Message:
    """Decode a message without its length.

    Raises:
        TransportError: It is malformed.
    """
    try:
        message: _Message = _ADAPTERS[kind].validate_json(document)
    except ValidationError as error:
        raise garbled(f"{error!r:.200}") from None
    return message


async def receive(kind: type[_Message], reader: asyncio.StreamReader) -> _Message:
    """Read the next message.

    Raises:
        asyncio.IncompleteReadError: The other side has disconnected.
        TransportError: The message is malformed.
    """
    (num_bytes,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if num_bytes > MAX_BYTES:
        raise garbled(f"it has {num_bytes} bytes, and at most {MAX_BYTES} are allowed")
    return decoded(kind, await reader.readexactly(num_bytes))


def garbled(problem: str) -> TransportError:
    """Return the error for a malformed message."""
    return TransportError(
        f"a message between router and engine cannot be read: {problem}",
        "this is a bug in Draftproof; send the request again and report it",
    )
