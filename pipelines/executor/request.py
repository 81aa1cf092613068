"""Holds the state of a request inside the executor."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from pipelines.errors import DraftproofError, NothingAllowedError
from pipelines.executor.kv_cache import BlockTable
from pipelines.executor.recurrent_states import State
from pipelines.executor.states import HeadStates, ReturnedStates
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds
from pipelines.text.token_map import TokenMap
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import StopWordMatcher

MIN_CHUNK_TOKENS = 2
"""A chunk of one token would use the attention kernel of decode tokens, whose last bits differ."""

MIN_STEP_TOKENS = 4
"""Smallest number of tokens that can always split a prompt into such chunks."""

_MOST_LOGITS = 1 << 22
"""Logits of a chunk, 16 MiB: OpenVINO keeps room for the most that it has returned."""


def tokens_to_read(
    asked: GenerationRequest, token_map: TokenMap | None, *, by_head: bool
) -> tuple[TokenIds, int]:
    """Return the known tokens that an engine reads for a request.

    Args:
        asked: The request.
        token_map: Translates tokens to those that the engine reads; None if they are the same.
        by_head: Whether it is a trained head, which does not read the first one.

    Returns:
        The tokens, int32 [n], and how many of them are computed as prompt.
    """
    known, num_prompt = asked.input_ids, asked.num_prompt_tokens
    if token_map is not None:
        prompt = token_map.translate_prompt(known[:num_prompt])
        known, num_prompt = np.concatenate((prompt, token_map.translate(known[num_prompt:]))), len(prompt)
    if by_head:
        known, num_prompt = known[1:], num_prompt - 1
    return known, num_prompt if num_prompt > 1 else 0


class Request(ABC):
    """A request that waits or runs, and the tokens that the engine reads for it.

    Attributes:
        asked: What was asked for.
        sampler: Turns logits into tokens; has seen all known tokens.
        outputs: Outputs, or the error with which the request ends.
        tokens: int32 buffer of the tokens that the engine reads; the first ``num_tokens`` are known.
        num_tokens: See ``tokens``.
        num_prompt: Leading tokens that are computed as prompt, in chunks of at least two. A prompt of a
            single token cannot be a chunk; it is decoded, and this is 0.
        num_computed: Leading positions whose keys and values are in the cache.
        num_cached: Those of the prompt that were there when the request began; None before.
        draft_ids: int32, draft tokens that are not yet verified, or mask tokens.
        is_verification: Whether the request has draft tokens.
        table: Blocks of a running request; None while it waits.
        head: What a trained head reads beside the tokens; None for other engines.
        state: Recurrent states of a running request; None for networks without.
        returned_states: Hidden states for the next output.

    Args:
        asked: See the attribute.
        vocabulary: Bytes of the tokens, for stop words.
        sampler: See the attribute.
        token_map: Translates tokens to those that the engine reads; None if they are the same.
    """

    def __init__(
        self,
        asked: GenerationRequest,
        vocabulary: Vocabulary,
        sampler: Sampler,
        token_map: TokenMap | None = None,
    ) -> None:
        self.asked = asked
        self.sampler = sampler
        self.outputs: asyncio.Queue[Output | DraftproofError] = asyncio.Queue()
        # A stop word counts only after the first min_tokens of the output.
        watched_ids = asked.input_ids[asked.num_prompt_tokens + asked.sampling.min_tokens :]
        self._stop_words = StopWordMatcher(asked.stop_words, vocabulary, watched_ids.tolist())
        self._token_map = token_map
        self.head: HeadStates | None = None
        known, self.num_prompt = tokens_to_read(asked, token_map, by_head=asked.target_states is not None)
        if asked.target_states is not None:
            self.head = HeadStates(asked.target_states, len(known))
        self.num_tokens = len(known)
        self.tokens: TokenIds = np.empty(self.num_tokens + asked.max_tokens, np.int32)
        self.tokens[: self.num_tokens] = known
        self.num_computed = 0
        self.num_cached: int | None = None
        self.draft_ids = asked.draft_input_ids
        self.is_verification = len(asked.draft_input_ids) > 0
        self._draft_logits = asked.draft_logits
        self.table: BlockTable | None = None
        self.state: State | None = None
        self.returned_states = ReturnedStates()
        self._output_ids: list[int] = []
        self._gaps: list[float] = []  # of a proposal
        # Until they are returned.
        self._prompt_log_probs: list[LogProbs] | None = [] if asked.prompt_log_probs else None

    @property
    def is_proposing(self) -> bool:
        """Whether this is an unfinished proposal, which is returned as a whole."""
        return False

    @property
    def num_output(self) -> int:
        """Number of tokens chosen so far."""
        return len(self._output_ids)

    @property
    def known_tokens(self) -> TokenIds:
        """Known tokens as a view, int32 [num_tokens]."""
        return self.tokens[: self.num_tokens]

    @property
    def num_unread(self) -> int:
        """Number of tokens of the prompt that are still to be computed."""
        return max(self.num_prompt - self.num_computed, 0)

    @property
    def next_tokens(self) -> TokenIds:
        """Tokens to compute next, int32 [n]: the rest of the prompt, or known tokens and draft tokens."""
        if self.num_unread:
            return self.tokens[self.num_computed : self.num_prompt]
        return np.concatenate((self.tokens[self.num_computed : self.num_tokens], self.draft_ids))

    @property
    def max_chunk_tokens(self) -> int | None:
        """Most tokens of a chunk of the prompt, all of whose logits are needed; None if they are not."""
        if not self._needs_prompt_logits:
            return None
        return max(_MOST_LOGITS // self.sampler.vocab_size, MIN_STEP_TOKENS)

    @property
    def _needs_prompt_logits(self) -> bool:
        found = self._prompt_log_probs
        return found is not None and sum(len(each.token_log_probs) for each in found) < self.num_prompt - 1

    def begin_prompt(self) -> TokenIds:
        """Begin to compute the known tokens; return those that may be cached, int32 [n]."""
        if not self._needs_prompt_logits:
            return self.known_tokens
        self._prompt_log_probs = []
        return NO_TOKENS  # a cached position has no logits

    def leave_out_first(self, count: int) -> None:
        """Leave out the first known tokens."""
        self.tokens = self.tokens[count:]
        self.num_tokens -= count
        self.num_prompt = max(self.num_prompt - count, 0)
        if self.num_prompt == 1:
            self.num_prompt = 0

    def leave_out_drafts(self, count: int) -> None:
        """Leave out the last ``count`` draft tokens, at least 1."""
        self.draft_ids = self.draft_ids[:-count]

    def take_prompt_logits(self, logits: Logits) -> None:
        """Compute log probabilities of the prompt from the logits of its next positions, if they are wanted.

        Args:
            logits: float32 [n, vocab_size], from position ``num_computed`` on.
        """
        if self._prompt_log_probs is None or not self._needs_prompt_logits:
            return
        assert self.asked.num_log_probs is not None
        begin = self.num_computed + 1
        token_ids = self.tokens[begin : min(begin + len(logits), self.num_prompt)]
        found = LogProbs.of(logits[: len(token_ids)], token_ids, self.asked.num_log_probs)
        self._prompt_log_probs.append(found)

    @abstractmethod
    def take_logits(self, logits: Logits, num_fed: int) -> Output | None:
        """Choose the next tokens and check whether the output ends.

        Args:
            logits: float32 [n, vocab_size], logits after the last known token and after each draft token, or
                after the last known token only if it ended a prompt chunk.
            num_fed: Leading positions whose keys and values are now in the cache, including draft tokens.

        Returns:
            The new output; None if there is none yet. ``num_computed`` then covers all known tokens that were
            part of the step.

        Raises:
            DraftproofError: See ``Sampler.choose`` and ``Sampler.verify``.
        """

    def cut_off(self) -> Output:
        """Return the last output of a request that ends for lack of blocks."""
        return Output(NO_TOKENS, "length", is_final=True)

    def _take_token(self, token_id: int, kept: list[int]) -> str:
        """Add a token to ``kept`` unless it is an end token; returns the finish reason, "" for none."""
        counts_for_stop_words = self.sampler.num_output >= self.asked.sampling.min_tokens
        self.sampler.push(token_id)
        if token_id in self.asked.end_ids:
            if self.asked.independent_noise:
                kept.append(token_id)
            return "stop"
        kept.append(token_id)
        if (counts_for_stop_words and self._stop_words.push(token_id)) or self.sampler.is_complete:
            return "stop"
        return "length" if self.num_output + len(kept) == self.asked.max_tokens else ""

    def _append(self, kept: list[int], num_fed: int, num_accepted: int) -> TokenIds:
        new_ids = np.array(kept, np.int32)
        read_ids = new_ids if self._token_map is None else self._token_map.translate(new_ids)
        self.num_computed = min(num_fed, self.num_tokens + min(num_accepted, len(kept)))
        self.tokens[self.num_tokens : self.num_tokens + len(read_ids)] = read_ids
        self.num_tokens += len(read_ids)
        self._output_ids += kept
        return new_ids


class AnswerRequest(Request):
    """Returns tokens as soon as they are chosen, after those of its draft tokens that it accepts.

    With draft tokens it is a verification: it ends with its first token that is no draft token.
    """

    def take_logits(self, logits: Logits, num_fed: int) -> Output:
        """Accept or reject draft tokens, and choose the token behind them."""
        kept: list[int] = []
        num_accepted = 0
        finish_reason = ""
        is_own = False
        num_verified = len(self.draft_ids) if self.is_verification else None
        for row_logits in logits:
            draft_id = int(self.draft_ids[num_accepted]) if num_accepted < len(self.draft_ids) else None
            token_id = self._choose(row_logits, num_accepted, draft_id)
            finish_reason = self._take_token(token_id, kept)
            is_own = token_id != draft_id
            num_accepted += not is_own
            if is_own or finish_reason:
                break
        is_verified = self.is_verification and is_own
        self.draft_ids = NO_TOKENS if is_verified else self.draft_ids[num_accepted:]
        if self._draft_logits is not None:
            self._draft_logits = self._draft_logits[num_accepted:]

        new_ids = self._append(kept, num_fed, num_accepted)
        return Output(
            new_ids,
            finish_reason,
            is_final=bool(finish_reason) or is_verified,
            log_probs=self._log_probs(logits, new_ids),
            prompt_log_probs=self._all_prompt_log_probs(logits),
            generation_logits=logits[: len(kept)].copy() if self.asked.return_generation_logits else None,
            num_verified=num_verified,
            num_cached=self.num_cached or 0,
            # Before an end token, which is not kept, the last known token is computed too.
            states=self.returned_states.take(min(self.num_computed, self.num_tokens - 1)),
        )

    def _choose(self, logits: Logits, num_accepted: int, draft_id: int | None) -> int:
        if draft_id is None or self._draft_logits is None:
            return self.sampler.choose(logits)
        return self.sampler.verify(logits, draft_id, self._draft_logits[num_accepted])

    def _log_probs(self, logits: Logits, token_ids: TokenIds) -> LogProbs | None:
        if self.asked.num_log_probs is None:
            return None
        return LogProbs.of(logits[: len(token_ids)], token_ids, self.asked.num_log_probs)

    def _all_prompt_log_probs(self, logits: Logits) -> LogProbs | None:
        parts, self._prompt_log_probs = self._prompt_log_probs, None
        if parts is None:
            return None
        none = LogProbs.of(logits[:0], NO_TOKENS, self.asked.num_log_probs or 0)  # of a prompt of one token
        return LogProbs.concatenate([none, *parts])


class ProposalRequest(Request):
    """Returns its tokens as a whole, with their top-2 gaps, when further drafting does not pay."""

    @property
    def is_proposing(self) -> bool:
        """Whether it is not returned yet."""
        return self.table is not None

    def take_logits(self, logits: Logits, num_fed: int) -> Output | None:
        """Add one token to the proposal, and end it where ``keep_drafting`` says so."""
        assert self.asked.keep_drafting is not None
        kept: list[int] = []
        try:
            token_id, gap = self.sampler.propose(logits[0])
        except NothingAllowedError:  # a draft with another tokenizer may lack what a grammar allows here
            return self._proposal("length")
        finish_reason = self._take_token(token_id, kept)
        self._gaps += [gap] * len(kept)
        self._append(kept, num_fed, num_accepted=0)
        if not finish_reason and self.asked.keep_drafting(gap):
            return None
        return self._proposal(finish_reason or "length")

    def cut_off(self) -> Output:
        """Return the tokens that were proposed before the blocks ran out."""
        return self._proposal("length")

    def _proposal(self, finish_reason: str) -> Output:
        proposed = np.array(self._output_ids, np.int32)
        return Output(proposed, finish_reason, is_final=True, gaps=np.array(self._gaps, np.float32))


class OnePassProposal(ProposalRequest):
    """Proposes all its tokens in one step: behind the known ones, mask tokens stand for those to come.

    The row of the last known token has the first token's logits, and that of the nth mask token those of the
    token n places further. Keys and values of mask tokens are never final: the next request of the round
    after computes these positions again, from the tokens that stand there then.

    Source: An et al. 2025, PARD, arXiv 2504.18583.

    Args:
        asked: See ``Request``.
        vocabulary: See ``Request``.
        sampler: See ``Request``.
        token_map: See ``Request``.
        mask_token_id: The mask token.
    """

    def __init__(
        self,
        asked: GenerationRequest,
        vocabulary: Vocabulary,
        sampler: Sampler,
        token_map: TokenMap | None = None,
        *,
        mask_token_id: int,
    ) -> None:
        super().__init__(asked, vocabulary, sampler, token_map)
        self.draft_ids = np.full(asked.max_tokens - 1, mask_token_id, np.int32)

    def take_logits(self, logits: Logits, num_fed: int) -> Output:
        """Choose a token for each row, as far as the output goes on and the request allows one."""
        kept: list[int] = []
        finish_reason = ""
        for row_logits in logits:
            try:
                token_id, gap = self.sampler.propose(row_logits)
            except NothingAllowedError:
                break
            finish_reason = self._take_token(token_id, kept)
            self._gaps += [gap] * (len(kept) - len(self._gaps))
            if finish_reason:
                break
        self._append(kept, num_fed, num_accepted=0)
        proposed = self._proposal(finish_reason or "length")
        if not self.asked.return_generation_logits:
            return proposed
        return replace(proposed, generation_logits=logits[: len(kept)].copy())
