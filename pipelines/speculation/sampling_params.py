"""How a request wants its tokens chosen."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

from pipelines.errors import InvalidRequestError

MAX_SEED = 2**64 - 1
MAX_LOGIT_BIAS = 100.0  # OpenAI's limits for this and the next
MAX_ADDED_PENALTY = 2.0

_DRAWN_SEED_BITS = 53  # readers of JSON that know only doubles keep such a number


@dataclass(frozen=True)
class SamplingParams:
    """How one token is chosen from the logits; ``logits_processing.py`` has the order.

    Attributes:
        temperature: 0 chooses the most likely token; above 0 the logits are divided by it.
        top_k: Sample among the ``top_k`` most likely tokens; 0 means all.
        top_p: Sample among the fewest tokens whose probabilities sum to at least ``top_p``, in (0, 1].
        min_p: Sample among tokens at least ``min_p`` times as likely as the likeliest, in [0, 1].
        repetition_penalty: Above 1 makes tokens of prompt and output less likely: a positive logit is
            divided by it, a negative one multiplied. Above 0; 1 for none.
        presence_penalty: Taken once from the logit of every token of the output, in [-2, 2].
        frequency_penalty: Taken from the logit of a token once per time it stands in the output, in
            [-2, 2].
        min_tokens: The output does not end before it has so many tokens: neither by an end token, which
            cannot be chosen until then, nor by a stop word, which must begin after them.
        logit_bias: Token ids and what is added to their logits, in [-100, 100]; no id twice.
        seed: Key of the noise, 0 to 2**64 - 1. The same seed gives the same output.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0.0

    @property
    def has_penalty(self) -> bool:
        """Whether a choice depends on the tokens before it."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def validate(self, vocab_size: int) -> None:
        """Refuse what has no meaning; nothing is clamped.

        Args:
            vocab_size: Logits per position, for the ids of ``logit_bias``.

        Raises:
            InvalidRequestError: A value is NaN, infinite or outside its range.
        """
        _check("temperature", self.temperature, 0.0, math.inf, "send 0 for greedy decoding")
        _check("top_k", self.top_k, 0, math.inf, "send 0 to sample among all tokens")
        _check("top_p", self.top_p, 0.0, 1.0, "send 1 to sample among all tokens", is_open=True)
        _check("min_p", self.min_p, 0.0, 1.0, "send 0 to sample among all tokens")
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            0.0,
            math.inf,
            "send 1 for no penalty",
            is_open=True,
        )
        for name in ("presence_penalty", "frequency_penalty"):
            limit = MAX_ADDED_PENALTY
            _check(name, getattr(self, name), -limit, limit, "send 0 for no penalty")
        _check("min_tokens", self.min_tokens, 0, math.inf, "send 0 for no minimum")
        _check("seed", self.seed, 0, MAX_SEED, "send an unsigned 64-bit integer, or none")
        self._validate_logit_bias(vocab_size)

    def _validate_logit_bias(self, vocab_size: int) -> None:
        seen: set[int] = set()
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id < vocab_size or token_id in seen:
                known = "is given twice" if token_id in seen else "is no token"
                raise InvalidRequestError(
                    f"an id of logit_bias {known}",
                    values=f"id {token_id}",
                    limit=f"ids from 0 to {vocab_size - 1}, each at most once",
                    remedy="send each token id of the model's vocabulary at most once",
                )
            seen.add(token_id)
            _check(
                f"the logit_bias of token {token_id}",
                bias,
                -MAX_LOGIT_BIAS,
                MAX_LOGIT_BIAS,
                "to forbid a token send -100 or name its text in bad_words",
            )


GREEDY = SamplingParams()


def draw_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(_DRAWN_SEED_BITS)


def _check(
    name: str, value: float, minimum: float, maximum: float, remedy: str, *, is_open: bool = False
) -> None:
    """Refuse a value that is not finite or outside [minimum, maximum]; ``is_open``: (minimum, maximum]."""
    if math.isfinite(value) and minimum <= value <= maximum and not (is_open and value == minimum):
        return
    limit = f"{'above' if is_open else 'at least'} {minimum:g}"
    limit += f" and at most {maximum:g}" if math.isfinite(maximum) else " and finite"
    raise InvalidRequestError(
        f"{name} is out of range", values=f"{name}={value}", limit=f"it must be {limit}", remedy=remedy
    )
