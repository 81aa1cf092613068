"""Defines requests to an engine and their outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.speculation.log_probs import MAX_LOG_PROBS, LogProbs
from pipelines.speculation.sampling.params import GREEDY, SamplingParams, check_range
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds

MAX_STATES = 2048
"""Last positions of a prompt whose hidden states are returned: heads are trained on short texts."""


@dataclass(frozen=True)
class TargetStates:
    """Hidden states of the target, which a trained head reads beside the tokens.

    Attributes:
        parts: float32 [n, size] each, of consecutive positions, the last ones before the last known token.
        begin: First position whose state the target has returned for this request: those before it were
            cached, or are too far from the end of the prompt.
    """

    parts: tuple[npt.NDArray[np.float32], ...]
    begin: int


@dataclass(frozen=True)
class GenerationRequest:
    """One request to an engine: a whole generation, a draft proposal or a verification.

    Attributes:
        request_id: Id of the request for logs and errors.
        input_ids: int32 [n], the known tokens: the prompt, then earlier output.
        max_tokens: Maximum number of output tokens, at least 1.
        prompt_length: Number of leading positions that are prompt and computed in chunks; the others are
            output and computed as decode tokens. None if all of ``input_ids`` is prompt.
        draft_input_ids: int32 [k], draft tokens. If there are any, the engine verifies them in one step and
            returns the accepted ones and one token of its own.
        draft_logits: float32 [k, vocab_size], raw logits from which the draft tokens were drawn with
            ``independent_noise`` and the same ``sampling``; the ratio rule then applies. Without them, a
            draft token is accepted if the engine would have chosen it itself.
        sampling: Sampling parameters.
        end_ids: Tokens that end the output; the end token is not part of it.
        stop_words: Bytes of words; the output ends with the token that completes one.
        bad_words: Bytes that must not occur in the output: a token that would complete one cannot be chosen.
        grammar: Limits the output, which ends with "stop" where the grammar leaves nothing to add; None for
            none.
        num_log_probs: Number of alternatives returned with the log probabilities of the output tokens; None
            for no log probabilities.
        prompt_log_probs: Whether to return the log probabilities of the prompt's tokens too, with as many
            alternatives. The prompt is then computed without cached blocks.
        return_generation_logits: Whether to return the logits from which tokens were chosen.
        return_states: Whether to return the hidden states that the engine has for a trained head.
        target_states: For a trained head; None for other engines.
        keep_drafting: If given, gaps are returned, and the output ends with "length" after the first token
            for whose gap this returns False.
        independent_noise: Whether to draw with separate noise instead of the noise that draft and target
            share, and to return an end token as the last token: a proposal for the ratio rule.
        deadline_s: Deadline on the clock of ``time.monotonic``; None for none.
        cache_salt: Only what requests with the same salt have computed is reused.
    """

    request_id: str
    input_ids: TokenIds
    max_tokens: int
    prompt_length: int | None = None
    draft_input_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    draft_logits: Logits | None = None
    sampling: SamplingParams = GREEDY
    end_ids: tuple[int, ...] = ()
    stop_words: tuple[bytes, ...] = ()
    bad_words: tuple[bytes, ...] = ()
    grammar: Grammar | None = None
    num_log_probs: int | None = None
    prompt_log_probs: bool = False
    return_generation_logits: bool = False
    return_states: bool = False
    target_states: TargetStates | None = None
    keep_drafting: Callable[[float], bool] | None = None
    independent_noise: bool = False
    deadline_s: float | None = None
    cache_salt: str = ""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of leading tokens of ``input_ids`` that are prompt."""
        return len(self.input_ids) if self.prompt_length is None else self.prompt_length

    def validate(self, max_seq_len: int, vocab_size: int) -> None:
        """Refuse an invalid request; values are never clamped.

        Args:
            max_seq_len: Maximum number of tokens of input and output together.
            vocab_size: Logits per position.

        Raises:
            InvalidRequestError: A value is invalid.
            PromptTooLongError: Input and output together are too long.
        """
        self.sampling.validate(vocab_size)
        num_input, num_draft = len(self.input_ids), len(self.draft_input_ids)
        if not num_input:
            raise InvalidRequestError("the prompt is empty: input_ids has 0 tokens", "send a prompt")
        check_range("max_tokens", self.max_tokens, 1, math.inf, "send max_tokens of 1 or more")
        num_tokens = num_input + max(self.max_tokens, num_draft + 1)
        if num_tokens > max_seq_len:
            raise PromptTooLongError(
                f"prompt and output together are too long: {num_input} prompt tokens + "
                f"{num_tokens - num_input} max_tokens = {num_tokens}, with max_seq_len={max_seq_len}",
                "shorten the prompt, lower max_tokens, or serve with a larger max_seq_len",
            )
        remedy = "send the number of leading input tokens that are prompt"
        check_range("prompt_length", self.num_prompt_tokens, 1, num_input, remedy)
        ids = [part for part in (self.input_ids, self.draft_input_ids) if len(part)]
        least, most = min(int(part.min()) for part in ids), max(int(part.max()) for part in ids)
        if least < 0 or most >= vocab_size:
            raise InvalidRequestError(
                f"a token id is outside the vocabulary: {least} to {most}, not 0 to {vocab_size - 1}",
                "use the tokenizer with which the engine was built",
            )
        if not all(0 <= end_id < vocab_size for end_id in self.end_ids):
            found = ", ".join(map(str, self.end_ids))
            raise InvalidRequestError(
                f"end_id is not a token: end_id={found}, not 0 to {vocab_size - 1}",
                "send a token id of the model's vocabulary, or -1 for an output without end token",
            )
        if not all((*self.stop_words, *self.bad_words)):
            raise InvalidRequestError("a stop word or bad word is empty", "leave it out")
        if self.num_log_probs is not None:
            most = min(MAX_LOG_PROBS, vocab_size)
            check_range("num_log_probs", self.num_log_probs, 0, most, "ask for fewer alternatives")
        if self.prompt_log_probs and self.num_log_probs is None:
            raise InvalidRequestError(
                "log probabilities of the prompt need those of the output: num_log_probs is missing",
                "send num_log_probs too",
            )
        if self.draft_logits is not None and (
            not num_draft or self.draft_logits.shape != (num_draft, vocab_size)
        ):
            raise InvalidRequestError(
                f"draft_logits do not fit the draft tokens: shape {list(self.draft_logits.shape)}, not "
                f"{[num_draft, vocab_size]}",
                "send the generation_logits of the draft with its tokens, or neither",
            )


@dataclass(frozen=True)
class Output:
    """New tokens of one answer or of one step of it.

    Attributes:
        token_ids: int32 [n], new tokens; never the prompt, and an end token only in a proposal
            (``independent_noise``).
        finish_reason: "" while the output continues, "stop" after an end token or stop word, "length" at
            ``max_tokens``.
        is_final: Whether the request ends with this output.
        log_probs: Log probabilities of ``token_ids`` if requested.
        generation_logits: float32 [n, vocab_size], raw logits of ``token_ids`` if requested.
        gaps: float32 [n], lead of each token over the next best, including noise; with ``keep_drafting``.
        num_verified: Number of leading draft tokens that were verified; None if all were.
        prompt_log_probs: Log probabilities of the prompt without its first token;
            with the first output if requested.
        num_cached: Leading tokens of the prompt whose keys and values an earlier request had computed.
        states: float32 [m, size], hidden states of the last m positions before the last known token; None if
            not requested, or if the engine has none.
    """

    token_ids: TokenIds
    finish_reason: str
    is_final: bool
    log_probs: LogProbs | None = None
    generation_logits: Logits | None = None
    gaps: npt.NDArray[np.float32] | None = None
    num_verified: int | None = None
    prompt_log_probs: LogProbs | None = None
    num_cached: int = 0
    states: npt.NDArray[np.float32] | None = None

    @classmethod
    def joined(cls, outputs: Sequence[Output]) -> Output:
        """Join all outputs of one answer to a single one, without gaps."""
        if len(outputs) == 1:
            return outputs[0]
        log_probs = [output.log_probs for output in outputs if output.log_probs is not None]
        logits = [output.generation_logits for output in outputs if output.generation_logits is not None]
        states = [output.states for output in outputs if output.states is not None]
        return cls(
            np.concatenate([output.token_ids for output in outputs]),
            outputs[-1].finish_reason,
            is_final=True,
            log_probs=LogProbs.concatenate(log_probs) if log_probs else None,
            prompt_log_probs=outputs[0].prompt_log_probs,
            generation_logits=np.concatenate(logits) if logits else None,
            num_verified=outputs[-1].num_verified,
            num_cached=outputs[0].num_cached,
            states=np.concatenate(states) if states else None,
        )


class GrammarState(Protocol):
    """The place in a grammar after some output."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end of the output may follow."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocab_size]; the end of the output is not among them."""

    @property
    def may_end(self) -> bool:
        """Whether the output may end here."""

    def look_ahead(self, draft_ids: TokenIds, limit_s: float) -> int:
        """Compute what ``allowed`` will return here and after each of these tokens, int32 [k].

        Runs on another thread while the engine computes the logits of these tokens.

        Args:
            draft_ids: int32 [k].
            limit_s: Time for what follows the next token, in seconds.

        Returns:
            The number of leading tokens for which the time was enough.
        """

    def push(self, token_id: int) -> None:
        """Add one output token, which is not an end token."""


class Grammar(Protocol):
    """The grammar of one request.

    Attributes:
        slow_s: Processor time of the latest mask if it was slow, otherwise 0. Nothing is drafted then, and
            requests with slow masks take turns, so that others need not wait for them.
    """

    slow_s: float

    @property
    def is_used_up(self) -> bool:
        """Whether ``after`` and its states fail for lack of room, which ``renew`` makes."""

    def renew(self) -> None:
        """Make room; may take seconds, so on another thread.

        Raises:
            InvalidRequestError: That has taken too long already.
        """

    def after(self, output_ids: TokenIds) -> GrammarState:
        """Return the state after an output, int32 [n].

        Raises:
            InvalidRequestError: The output does not follow the grammar.
        """

    def forced_after(self, output_ids: TokenIds) -> TokenIds:
        """Return the tokens that must follow an output, int32 [n]; empty if there is a choice.

        May take long, so on another thread.
        """
