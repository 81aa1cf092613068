"""Requests of a client, and their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from pipelines.errors import InvalidRequestError

_INT32_LIMIT = 2**31
_UINT64_LIMIT = 2**64
_GUIDE_TENSORS = "guided_decoding_guide_type", "guided_decoding_guide"
_DEFAULT_NUMBERS = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_DEFAULT_FLAGS = {
    "add_special_tokens": True,
    "parse_special_tokens": False,
    "skip_special_tokens": True,
    "use_draft_logits": False,
    "return_prompt_log_probs": False,
}


@dataclass(frozen=True)
class InputTensor:
    """One named input of ``generate`` or ``generate_target``.

    Attributes:
        name: Name, as NVIDIA's models have it.
        datatype: Triton's datatype: BYTES, INT32, UINT64, FP32 or BOOL.
        values: Values in row-major order, sent with shape [1, len(values)].
    """

    name: str
    datatype: str
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class CompletionRequest:
    """A text or tokens to continue, and the sampling parameters.

    The server validates the values; the client refuses only what cannot be transmitted.

    Attributes:
        prompt: Text to continue; the answer does not repeat it. Left out if there are ``prompt_ids``.
        max_tokens: Most output tokens.
        temperature: 0 always takes the most likely token; above 0 samples.
        top_k: Sample among this many most likely tokens; 0 means all.
        top_p: Sample among the fewest tokens whose probabilities reach this sum, in (0, 1].
        seed: Seed of the sampling noise, 0 to 2**64 - 1; the same seed gives the same answer. With None the
            server draws one and returns it.
        stop_words: Texts before the first of which the answer ends.
        end_id: Token that ends the answer; None for the engine's own.
        num_draft_tokens: Draft tokens per round; 0 turns speculation off; None lets the server choose. Only
            the model ``generate`` has this input.
        min_p: Sample among tokens at least this many times as likely as the likeliest, in [0, 1].
        repetition_penalty: Values above 1 make tokens of prompt and answer less likely; 1 for none.
        presence_penalty: Subtracted once from the logits of tokens in the answer, in [-2, 2].
        frequency_penalty: Subtracted from their logits once per occurrence, in [-2, 2].
        min_tokens: Least number of output tokens; stop words must begin after them.
        bad_words: Texts that the answer must not contain.
        logit_bias: Token ids and values to add to their logits, in [-100, 100].
        guide: Type and text of a guide that the answer follows: ``json`` (any object; the text is empty),
            ``json_schema``, ``regex``, ``choice`` (a JSON list), ``ebnf_grammar`` or ``lark_grammar``.
        num_log_probs: 0 returns the log probability of each output token, n also those of the n likeliest
            tokens; None returns neither.
        return_prompt_log_probs: Return the same for the prompt without its first token; needs
            ``num_log_probs``.
        use_draft_logits: Accept draft tokens by the ratio rule. The answer then follows the target's
            distribution, but is not the target's own. Only the model ``generate`` has this input.
        session_id: Session, whose requests share draft statistics, look drafts up in its earlier answers, and
            are answered by one arm of the router. Whoever names it can find out what was in those answers.
        arm: For ``router`` only: "stable", "candidate" or "control"; "" to choose by weight.
        prompt_ids: Tokens to continue, instead of ``prompt``.
        add_special_tokens: Put the tokenizer's special tokens, such as BOS, before the prompt.
        parse_special_tokens: Read names such as ``<|im_start|>`` in the prompt as special tokens, which a
            rendered chat template needs. Text from others must not be parsed.
        skip_special_tokens: Leave special tokens out of the answer's text.
        resume_output_ids: Tokens of the answer that arrived in whole chunks before it broke off. The rest
            follows, as it would have without the interruption if ``seed`` is that of the answer; counts are
            those of the rest.
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
    arm: str = ""
    prompt_ids: tuple[int, ...] = ()
    add_special_tokens: bool = True
    parse_special_tokens: bool = False
    skip_special_tokens: bool = True
    resume_output_ids: tuple[int, ...] = ()

    def tensors(self, *, streaming: bool) -> Iterator[InputTensor]:
        """Yield the inputs to send, omitting most that have their defaults.

        Raises:
            InvalidRequestError: A value cannot be transmitted.
        """
        if self.prompt or not len(self.prompt_ids):
            yield InputTensor("text_input", "BYTES", (_utf8("prompt", self.prompt),))
        for name, tensor in (("prompt_ids", "input_ids"), ("resume_output_ids", "resume_output_ids")):
            ids: tuple[int, ...] = getattr(self, name)
            if len(ids):  # an array of numpy has no truth
                yield InputTensor(tensor, "INT32", tuple(_integer(name, token_id) for token_id in ids))
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
            biased, values = zip(*self.logit_bias, strict=True)
            yield InputTensor("logit_bias_ids", "INT32", tuple(_integer("logit_bias", i) for i in biased))
            yield InputTensor("logit_bias_values", "FP32", tuple(_finite("logit_bias", v) for v in values))
        if self.guide is not None:
            for name, text in zip(_GUIDE_TENSORS, self.guide, strict=True):
                if text:
                    yield InputTensor(name, "BYTES", (_utf8(name, text),))
        if self.num_log_probs is not None:
            yield InputTensor("return_log_probs", "BOOL", (True,))
            count = _integer("num_log_probs", self.num_log_probs)
            yield InputTensor("num_log_probs", "INT32", (count,))

    def _optional_scalars(self) -> Iterator[InputTensor]:
        for name, flag in _DEFAULT_FLAGS.items():
            if getattr(self, name) != flag:
                yield InputTensor(name, "BOOL", (not flag,))
        for name, default in _DEFAULT_NUMBERS.items():
            value = getattr(self, name)
            if value != default:
                yield InputTensor(name, "FP32", (_finite(name, value),))
        if self.min_tokens:
            yield InputTensor("min_tokens", "INT32", (_integer("min_tokens", self.min_tokens),))


def _integer(name: str, value: Any, minimum: int = -_INT32_LIMIT, limit: int = _INT32_LIMIT) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):  # numpy's integers are such too
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"{name}={value!r}",
            limit="an integer",
            remedy=f"send an integer as {name}",
        )
    number = int(value)
    if not minimum <= number < limit:
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"{name}={value}",
            limit=f"{minimum} to {limit - 1}",
            remedy=f"send a smaller {name}" if number >= limit else f"send a larger {name}",
        )
    return number


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"{name}={value}",
            limit="a finite number",
            remedy="send a finite number",
        )
    return float(value)


def _utf8(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} cannot be sent",
            values=f"code point {text[error.start]!r} at {error.start}",
            limit="text that can be encoded as UTF-8, without lone surrogates",
            remedy="decode the source text with errors='replace'",
        ) from error
    return text
