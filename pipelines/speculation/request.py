"""What is asked of an engine, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError

TokenIds = npt.NDArray[np.int32]

NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
NO_TOKENS.setflags(write=False)

MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How one token is chosen from the logits.

    Attributes:
        temperature: 0 chooses the most likely token; above 0 the logits are divided by it.
        top_k: Sample among the ``top_k`` most likely tokens; 0 means all.
        top_p: Sample among the fewest tokens whose probabilities sum to at least ``top_p``, in (0, 1].
        seed: Key of the noise, 0 to 2**64 - 1. The same seed gives the same output.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0.0

    def validate(self) -> None:
        """Refuse what has no meaning; nothing is clamped.

        Raises:
            InvalidRequestError: A value is NaN, infinite or outside its range.
        """
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise InvalidRequestError(
                "temperature has no meaning",
                values=f"temperature={self.temperature}",
                limit="it must be finite and at least 0",
                remedy="send 0 for greedy decoding or a positive number",
            )
        if self.top_k < 0:
            raise InvalidRequestError(
                "top_k is negative",
                values=f"top_k={self.top_k}",
                limit="it must be at least 0",
                remedy="send 0 to sample among all tokens",
            )
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(
                "top_p is out of range",
                values=f"top_p={self.top_p}",
                limit="it must lie in (0, 1]",
                remedy="send 1 to sample among all tokens",
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequestError(
                "seed is out of range",
                values=f"seed={self.seed}",
                limit="it must lie in 0..2**64-1",
                remedy="send an unsigned 64-bit integer",
            )


@dataclass(frozen=True)
class GenerationRequest:
    """One request to an engine: a whole generation, a draft proposal or a verification.

    Attributes:
        request_id: Names the request in logs and errors.
        input_ids: int32 [n], the known tokens: the prompt, then what was generated before.
        max_tokens: Output tokens wanted, at least 1.
        prompt_length: Positions below it are prompt and computed in chunks; the others were generated
            and are computed as rows. None means that all of ``input_ids`` is prompt.
        draft_input_ids: int32 [k]. Not empty: the engine verifies them in one step and answers with
            the accepted ones and one token of its own.
        sampling: How tokens are chosen.
        end_id: Token that ends the output (it is not part of it); None for no such token.
        stop_words: The output ends with the token that completes one of them, as bytes of its text.
        deadline_s: Time on ``time.monotonic``'s clock after which the request fails; None for never.
    """

    request_id: str
    input_ids: TokenIds
    max_tokens: int
    prompt_length: int | None = None
    draft_input_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    sampling: SamplingParams = SamplingParams()
    end_id: int | None = None
    stop_words: tuple[bytes, ...] = ()
    deadline_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Leading tokens of ``input_ids`` that are prompt."""
        return len(self.input_ids) if self.prompt_length is None else self.prompt_length

    def validate(self, max_seq_len: int) -> None:
        """Refuse what no engine can answer; nothing is clamped.

        Args:
            max_seq_len: Tokens of input and output together that the engine takes.

        Raises:
            InvalidRequestError: A value has no meaning.
            PromptTooLongError: Input and output are too long together.
        """
        self.sampling.validate()
        num_input, num_draft = len(self.input_ids), len(self.draft_input_ids)
        if not num_input:
            raise InvalidRequestError(
                "the prompt is empty",
                values="input_ids has 0 tokens",
                limit="at least 1 token",
                remedy="send a prompt",
            )
        if self.max_tokens < 1:
            raise InvalidRequestError(
                "no output is asked for",
                values=f"max_tokens={self.max_tokens}",
                limit="at least 1",
                remedy="send max_tokens of 1 or more",
            )
        num_tokens = num_input + max(self.max_tokens, num_draft + 1)
        if num_tokens > max_seq_len:
            raise PromptTooLongError(
                "prompt and output are too long together",
                values=f"{num_input} prompt tokens + {num_tokens - num_input} max_tokens = {num_tokens}",
                limit=f"max_seq_len={max_seq_len}",
                remedy="shorten the prompt, lower max_tokens, or serve with a larger max_seq_len",
            )
        if not 0 < self.num_prompt_tokens <= num_input:
            raise InvalidRequestError(
                "prompt_length does not fit the input",
                values=f"prompt_length={self.num_prompt_tokens}, {num_input} input tokens",
                limit="1 to the number of input tokens",
                remedy="send the number of leading input tokens that are prompt",
            )
        if not all(self.stop_words):
            raise InvalidRequestError(
                "a stop word is empty",
                values="''",
                limit="at least one byte",
                remedy="leave it out",
            )


@dataclass(frozen=True)
class Output:
    """New tokens of one answer or of one step of it.

    Attributes:
        token_ids: int32 [n], new tokens; never the prompt, never ``end_id``.
        finish_reason: "" while the output goes on, "stop" after ``end_id`` or a stop word, "length"
            when ``max_tokens`` are reached.
        is_final: Whether the request ends with this output.
    """

    token_ids: TokenIds
    finish_reason: str
    is_final: bool
