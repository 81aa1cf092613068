"""What is asked of an engine, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.speculation.log_probs import MAX_LOG_PROBS, LogProbs
from pipelines.speculation.sampling_params import GREEDY, SamplingParams
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds


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
        draft_logits: float32 [k, vocab_size], raw logits that the draft tokens were drawn from, with
            ``independent_noise`` and the same ``sampling``: they are accepted by the ratio rule. None:
            a draft token is accepted if it is the token that the engine chooses itself.
        draft_survival: float64 [k], not rising: the probability that each draft token becomes output. Given:
            the engine verifies only those that are worth their row.
        sampling: How tokens are chosen.
        end_ids: Tokens that end the output, each alike; the one that does is not part of it.
        stop_words: The output ends with the token that completes one of them, as bytes of its text.
        bad_words: Bytes that the text of the output must not contain: a token that would complete one
            cannot be chosen.
        num_log_probs: 0 for the log probabilities of the output tokens, more for those of so many
            alternatives too, None for none.
        return_generation_logits: Whether the answer has the logits that its tokens were chosen from.
        keep_drafting: Given: the answer has the margins of its tokens, and ends, as by "length", after the
            token for whose margin this says no.
        independent_noise: Draw with noise that nothing else uses instead of that which draft and target
            share, and give an end token like any other, as the last one: a proposal for the ratio
            rule.
        deadline_s: Time on ``time.monotonic``'s clock after which the request fails; None for never.
    """

    request_id: str
    input_ids: TokenIds
    max_tokens: int
    prompt_length: int | None = None
    draft_input_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    draft_logits: Logits | None = None
    draft_survival: npt.NDArray[np.float64] | None = None
    sampling: SamplingParams = GREEDY
    end_ids: tuple[int, ...] = ()
    stop_words: tuple[bytes, ...] = ()
    bad_words: tuple[bytes, ...] = ()
    num_log_probs: int | None = None
    return_generation_logits: bool = False
    keep_drafting: Callable[[float], bool] | None = None
    independent_noise: bool = False
    deadline_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Leading tokens of ``input_ids`` that are prompt."""
        return len(self.input_ids) if self.prompt_length is None else self.prompt_length

    def validate(self, max_seq_len: int, vocab_size: int) -> None:
        """Refuse what no engine can answer; nothing is clamped.

        Args:
            max_seq_len: Tokens of input and output together that the engine takes.
            vocab_size: Logits per position.

        Raises:
            InvalidRequestError: A value has no meaning.
            PromptTooLongError: Input and output are too long together.
        """
        self.sampling.validate(vocab_size)
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
        if not all(0 <= end_id < vocab_size for end_id in self.end_ids):
            raise InvalidRequestError(
                "end_id is no token",
                values=f"end_id={', '.join(map(str, self.end_ids))}",
                limit=f"0 to {vocab_size - 1}",
                remedy="send a token id of the model's vocabulary, or -1 for an output without end token",
            )
        if not all((*self.stop_words, *self.bad_words)):
            raise InvalidRequestError(
                "a stop word or bad word is empty",
                values="''",
                limit="at least one byte",
                remedy="leave it out",
            )
        if self.num_log_probs is not None and not 0 <= self.num_log_probs <= min(MAX_LOG_PROBS, vocab_size):
            raise InvalidRequestError(
                "num_log_probs is out of range",
                values=f"num_log_probs={self.num_log_probs}",
                limit=f"0 to {min(MAX_LOG_PROBS, vocab_size)} alternatives per token",
                remedy="ask for fewer alternatives",
            )
        if self.draft_logits is not None and (
            not num_draft or self.draft_logits.shape != (num_draft, vocab_size)
        ):
            raise InvalidRequestError(
                "draft_logits do not fit the draft tokens",
                values=f"shape {list(self.draft_logits.shape)}, {num_draft} draft tokens",
                limit=f"one row of {vocab_size} logits for each of at least one draft token",
                remedy="send the generation_logits of the draft with its tokens, or neither",
            )


@dataclass(frozen=True)
class Output:
    """New tokens of one answer or of one step of it.

    Attributes:
        token_ids: int32 [n], new tokens; never the prompt, and an end token only in a proposal
            (``independent_noise``).
        finish_reason: "" while the output goes on, "stop" after an end token or a stop word, "length"
            when ``max_tokens`` are reached.
        is_final: Whether the request ends with this output.
        log_probs: Of ``token_ids``, if asked for.
        generation_logits: float32 [n, vocab_size], raw, from which ``token_ids`` were chosen, if asked
            for.
        margins: float32 [n], by how much each token was preferred to the next best, noise included, if
            ``keep_drafting`` asks.
        num_verified: Leading draft tokens that were verified; None from an engine that verifies them all.
    """

    token_ids: TokenIds
    finish_reason: str
    is_final: bool
    log_probs: LogProbs | None = None
    generation_logits: Logits | None = None
    margins: npt.NDArray[np.float32] | None = None
    num_verified: int | None = None
