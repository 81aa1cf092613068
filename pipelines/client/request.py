"""What a client asks for, and the tensors that carry it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.errors import InvalidRequestError

_INT32_LIMIT = 2**31
_UINT64_LIMIT = 2**64
_DEFAULT_NUMBERS = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True)
class InputTensor:
    """One named input of ``generate`` or ``generate_target``.

    Attributes:
        name: NVIDIA's name.
        datatype: Triton's word: BYTES, INT32, UINT64, FP32 or BOOL.
        values: Row-major; sent with shape [1, len(values)].
    """

    name: str
    datatype: str
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class CompletionRequest:
    """Text to continue, and how.

    The server judges the values; the client refuses only what the wire cannot carry.

    Attributes:
        prompt: Text to continue; it is not repeated in the answer.
        max_tokens: Output tokens at most.
        temperature: 0 takes the most likely token every time; above 0 it samples.
        top_k: Sample among this many most likely tokens; 0 means all.
        top_p: Sample among the fewest tokens whose probabilities reach this sum, in (0, 1].
        seed: Key of the sampling noise, 0 to 2**64 - 1: same seed, same answer. None: the
            server draws one and says which.
        stop_words: The answer ends before the first of them.
        end_id: Token that ends the answer; None: the engine's own.
        num_draft_tokens: Draft tokens per round; 0 switches speculation off; None: the server's choice.
            Only the model ``generate`` has this input.
        min_p: Sample among tokens at least this many times as likely as the likeliest, in [0, 1].
        repetition_penalty: Above 1 makes tokens of prompt and answer less likely; above 0; 1 for none.
        presence_penalty: Taken once from the logits of the answer's tokens, in [-2, 2].
        frequency_penalty: Taken from them once per time that they stand in the answer, in [-2, 2].
        min_tokens: The answer has at least so many tokens; stop words must begin after them.
        bad_words: Texts that the answer does not contain.
        logit_bias: Token ids and what is added to their logits, in [-100, 100].
        num_log_probs: 0 asks for the log probability of each token of the answer, n also for those of
            the n likeliest at its place; None for neither.
        use_draft_logits: Accept draft tokens by the ratio rule: the answer has the target's
            distribution, yet is not the target's own. Only the model ``generate`` has this input.
        session_id: Requests of one session share what the server learns about their text, and the router
            answers them all by one arm.
        arm: For ``router`` alone: "stable", "candidate" or "control"; "" to leave it to chance.
    """

    prompt: str
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
    num_log_probs: int | None = None
    use_draft_logits: bool = False
    session_id: str = ""
    arm: str = ""

    def tensors(self, *, streaming: bool) -> Iterator[InputTensor]:
        """The inputs to send; most are left out at their defaults, which are the server's too.

        Raises:
            InvalidRequestError: A value has no form on the wire.
        """
        yield InputTensor("text_input", "BYTES", (_utf8("prompt", self.prompt),))
        yield InputTensor("max_tokens", "INT32", (_integer("max_tokens", self.max_tokens),))
        yield InputTensor("stream", "BOOL", (streaming,))
        yield InputTensor("temperature", "FP32", (_finite("temperature", self.temperature),))
        yield InputTensor("top_k", "INT32", (_integer("top_k", self.top_k),))
        yield InputTensor("top_p", "FP32", (_finite("top_p", self.top_p),))
        if self.seed is not None:
            yield InputTensor("seed", "UINT64", (_integer("seed", self.seed, 0, _UINT64_LIMIT),))
        for name in ("stop_words", "bad_words"):
            words: tuple[str, ...] = getattr(self, name)
            if words:
                yield InputTensor(name, "BYTES", tuple(_utf8(name, word) for word in words))
        if self.end_id is not None:
            yield InputTensor("end_id", "INT32", (_integer("end_id", self.end_id),))
        if self.session_id:
            yield InputTensor("session_id", "BYTES", (_utf8("session_id", self.session_id),))
        if self.arm:
            yield InputTensor("arm", "BYTES", (_utf8("arm", self.arm),))
        if self.num_draft_tokens is not None:
            count = _integer("num_draft_tokens", self.num_draft_tokens)
            yield InputTensor("num_draft_tokens", "INT32", (count,))
        yield from self._optional_scalars()
        if self.logit_bias:
            ids, values = zip(*self.logit_bias, strict=True)
            yield InputTensor("logit_bias_ids", "INT32", tuple(_integer("logit_bias", i) for i in ids))
            yield InputTensor("logit_bias_values", "FP32", tuple(_finite("logit_bias", v) for v in values))
        if self.num_log_probs is not None:
            yield InputTensor("return_log_probs", "BOOL", (True,))
            count = _integer("num_log_probs", self.num_log_probs)
            yield InputTensor("num_log_probs", "INT32", (count,))

    def _optional_scalars(self) -> Iterator[InputTensor]:
        for name, default in _DEFAULT_NUMBERS.items():
            value = getattr(self, name)
            if value != default:
                yield InputTensor(name, "FP32", (_finite(name, value),))
        if self.min_tokens:
            yield InputTensor("min_tokens", "INT32", (_integer("min_tokens", self.min_tokens),))
        if self.use_draft_logits:
            yield InputTensor("use_draft_logits", "BOOL", (True,))


def _integer(name: str, value: int, minimum: int = -_INT32_LIMIT, limit: int = _INT32_LIMIT) -> int:
    if not minimum <= value < limit:
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"{name}={value}",
            limit=f"it must lie in {minimum}..{limit - 1}",
            remedy=f"send a smaller {name}" if value >= limit else f"send a larger {name}",
        )
    return value


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"{name}={value}",
            limit="it must be finite; JSON has no NaN and no infinity",
            remedy="send an ordinary number",
        )
    return float(value)


def _utf8(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"code point {text[error.start]!r} at {error.start}",
            limit="text travels as UTF-8, which has no lone surrogates",
            remedy="decode the source text with errors='replace'",
        ) from error
    return text
