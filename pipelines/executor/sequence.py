"""Holds the state of a request inside the executor."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from pipelines.errors import DraftproofError, NothingAllowedError
from pipelines.executor.kv_cache import BlockTable
from pipelines.executor.recurrent_states import State
from pipelines.executor.states import HeadStates, ReturnedStates
from pipelines.executor.step import Chunk
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds
from pipelines.text.stop_words import StopWordMatcher
from pipelines.text.token_map import TokenMap
from pipelines.text.vocabulary import Vocabulary

MIN_CHUNK_TOKENS = 2
"""A chunk of one token would use the attention kernel of rows, whose last bits differ."""

MIN_STEP_TOKENS = 4
"""Smallest number of tokens that can always split a prompt into such chunks."""

_MOST_LOGITS = 1 << 22
"""Logits of a chunk, 16 MiB: OpenVINO keeps room for the most that it has returned."""


class Sequence:
    """State of one request.

    Attributes:
        request: The request.
        sampler: Turns logits into tokens; has seen all known tokens.
        stop_words: Finds the stop words of the request.
        outputs: Outputs, or the error with which the request ends.
        token_map: Translates chosen tokens to those that the engine reads; None if they are the same.
        tokens: int32 buffer of the tokens that the engine reads; the first ``num_tokens`` are known.
        num_tokens: See ``tokens``.
        num_prompt: Leading tokens that are computed as prompt, in chunks of at least two. A prompt of a
            single token cannot be a chunk; it is computed as a row, and this is 0.
        num_computed: Leading positions whose keys and values are in the cache.
        num_cached: Those of the prompt that were there when the request began; None before.
        draft_ids: int32, draft tokens that are not yet verified.
        draft_logits: float32 [len(draft_ids), vocab_size] for the ratio rule, otherwise None.
        is_verification: Whether the request ends with the token after its accepted draft tokens.
        output_ids: Tokens chosen so far.
        gaps: Gaps of the tokens proposed so far.
        most_chunk_tokens: Most tokens of a prompt's chunk whose logits are all needed.
        table: Blocks of a running request; None while it waits.
        returned_states: Hidden states for the next output; None if there are none, or they are not wanted.
        head: What a trained head reads beside the tokens; None for other engines.
        state: Recurrent states of a running request; None for networks without.

    Args:
        request: The request.
        vocabulary: Bytes of the tokens, for stop words.
        sampler: See the attribute.
        token_map: See the attribute.
    """

    def __init__(
        self,
        request: GenerationRequest,
        vocabulary: Vocabulary,
        sampler: Sampler,
        token_map: TokenMap | None = None,
    ) -> None:
        self.request = request
        self.sampler = sampler
        self.token_map = token_map
        self.outputs: asyncio.Queue[Output | DraftproofError] = asyncio.Queue()
        # A stop word counts only after the first min_tokens of the output.
        watched_ids = request.input_ids[request.num_prompt_tokens + request.sampling.min_tokens :]
        self.stop_words = StopWordMatcher(request.stop_words, vocabulary, watched_ids.tolist())
        known, num_prompt = request.input_ids, request.num_prompt_tokens
        if token_map is not None:
            prompt = token_map.translate_prompt(known[:num_prompt])
            known, num_prompt = np.concatenate((prompt, token_map.translate(known[num_prompt:]))), len(prompt)
        self.returned_states: ReturnedStates | None = None
        self.head: HeadStates | None = None
        self.state: State | None = None
        if request.target_states is not None:
            known, num_prompt = known[1:], num_prompt - 1
            self.head = HeadStates(request.target_states, len(known))
        self.num_tokens = len(known)
        self.num_prompt = num_prompt if num_prompt > 1 else 0
        self.tokens: TokenIds = np.empty(self.num_tokens + request.max_tokens, np.int32)
        self.tokens[: self.num_tokens] = known
        self.num_computed = 0
        self.num_cached: int | None = None
        self.draft_ids = request.draft_input_ids
        self.draft_logits = request.draft_logits
        self.is_verification = len(request.draft_input_ids) > 0
        self.output_ids: list[int] = []
        self.gaps: list[float] = []
        self.most_chunk_tokens = max(_MOST_LOGITS // sampler.vocab_size, MIN_STEP_TOKENS)
        self.table: BlockTable | None = None
        # Until they are returned.
        self._prompt_log_probs: list[LogProbs] | None = [] if request.prompt_log_probs else None

    @property
    def num_output(self) -> int:
        """Number of tokens chosen so far."""
        return len(self.output_ids)

    @property
    def known_tokens(self) -> TokenIds:
        """Known tokens as a view, int32 [num_tokens]."""
        return self.tokens[: self.num_tokens]

    @property
    def num_final(self) -> int:
        """Number of computed positions that later requests may use: a head computes drafted ones again."""
        return self.num_computed if self.head is None else min(self.num_computed, self.head.num_known)

    @property
    def is_proposing(self) -> bool:
        """Whether this is an unfinished proposal, which is returned as a whole."""
        return self.request.keep_drafting is not None and self.table is not None

    @property
    def reads_prompt(self) -> bool:
        """Whether part of the prompt is still to be computed."""
        return self.num_computed < self.num_prompt

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether the logits of the prompt's positions are needed: a cached position has none."""
        found = self._prompt_log_probs
        return found is not None and sum(len(each.token_log_probs) for each in found) < self.num_prompt - 1

    def begin_prompt(self) -> TokenIds:
        """Begin to compute the known tokens; return those that may be cached, int32 [n]."""
        if not self.needs_prompt_logits:
            return self.known_tokens
        self._prompt_log_probs = []
        return NO_TOKENS

    def shorten(self) -> None:
        """Leave out tokens whose states a head needs and does not have."""
        assert self.head is not None
        count = self.head.shorten()
        self.tokens = self.tokens[count:]
        self.num_tokens -= count
        self.num_prompt = max(self.num_prompt - count, 0)
        if self.num_prompt == 1:
            self.num_prompt = 0

    def with_states(self, chunk: Chunk) -> Chunk:
        """Return a chunk with what a head reads beside its tokens, or with the recurrent states."""
        if self.head is None:
            return chunk if self.state is None else replace(chunk, slot=self.state.slot)
        if chunk.start >= self.head.num_known:
            return replace(chunk, hidden=self.head.hidden)
        return replace(chunk, features=self.head.of(chunk.start, len(chunk.token_ids)))

    def take_states(self, chunk: Chunk, states: Logits) -> None:
        """Keep the hidden states of a computed chunk.

        Args:
            chunk: The chunk.
            states: float32 [n, size] of all its tokens, or of a head [num_logits, hidden].
        """
        if self.head is not None:
            self.head.hidden = states[-1:].copy()
        elif self.request.return_states:
            self.returned_states = self.returned_states or ReturnedStates()
            self.returned_states.add(chunk.start, states)

    def take_prompt_logits(self, logits: Logits) -> None:
        """Compute log probabilities of the prompt from the logits of its next positions.

        Args:
            logits: float32 [n, vocab_size], from position ``num_computed`` on.
        """
        if self._prompt_log_probs is None or not self.needs_prompt_logits:
            return
        assert self.request.num_log_probs is not None
        begin = self.num_computed + 1
        token_ids = self.tokens[begin : min(begin + len(logits), self.num_prompt)]
        found = LogProbs.of(logits[: len(token_ids)], token_ids, self.request.num_log_probs)
        self._prompt_log_probs.append(found)

    def next_rows(self) -> TokenIds:
        """Return the tokens to compute as rows: known ones, then draft tokens."""
        return np.concatenate((self.tokens[self.num_computed : self.num_tokens], self.draft_ids))

    def leave_out(self, count: int) -> None:
        """Drop the last ``count`` draft tokens, at least 1."""
        self.draft_ids = self.draft_ids[:-count]

    def take_logits(self, logits: Logits, num_fed: int) -> Output | None:
        """Choose the next tokens, accept or reject draft tokens, and check whether the output ends.

        Args:
            logits: float32 [n, vocab_size], logits after the last known token and after each draft token, or
                after the last known token only if it ended a prompt chunk.
            num_fed: Leading positions whose keys and values are now in the cache, including draft tokens.

        Returns:
            The new output; None for an unfinished proposal. ``num_computed`` then covers all known tokens
            that were part of the step.

        Raises:
            DraftproofError: See ``Sampler.choose`` and ``Sampler.verify``.
        """
        if self.request.keep_drafting is not None:
            return self._propose(logits[0], num_fed)
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
        if self.draft_logits is not None:
            self.draft_logits = self.draft_logits[num_accepted:]

        new_ids = self._append(kept, num_fed, num_accepted)
        return Output(
            new_ids,
            finish_reason,
            is_final=bool(finish_reason) or is_verified,
            log_probs=self._log_probs(logits, new_ids),
            prompt_log_probs=self._all_prompt_log_probs(logits),
            generation_logits=(logits[: len(kept)].copy() if self.request.return_generation_logits else None),
            num_verified=num_verified,
            num_cached=self.num_cached or 0,
            states=self._states(),
        )

    def _states(self) -> Logits | None:
        if self.returned_states is None:
            return None
        # Before an end token, which is not kept, the last known token is computed too.
        return self.returned_states.take(min(self.num_computed, self.num_tokens - 1))

    def _propose(self, logits: Logits, num_fed: int) -> Output | None:
        """Add one token to a proposal, which ends when further drafting does not pay."""
        assert self.request.keep_drafting is not None
        kept: list[int] = []
        try:
            token_id, gap = self.sampler.propose(logits)
        except (
            NothingAllowedError
        ):  # a draft with another tokenizer may lack all tokens that a grammar allows
            finish_reason = "length"
        else:
            finish_reason = self._take_token(token_id, kept)
            self.gaps += [gap] * len(kept)
            self._append(kept, num_fed, num_accepted=0)
            if not finish_reason and self.request.keep_drafting(gap):
                return None
        return self.proposal(finish_reason or "length")

    def proposal(self, finish_reason: str) -> Output:
        """Return the proposed tokens, without those that outputs have returned one by one."""
        if self.request.keep_drafting is None:
            return Output(NO_TOKENS, finish_reason, is_final=True)
        proposed = np.array(self.output_ids, np.int32)
        gaps = np.array(self.gaps, np.float32)
        return Output(proposed, finish_reason, is_final=True, gaps=gaps)

    def _append(self, kept: list[int], num_fed: int, num_accepted: int) -> TokenIds:
        new_ids = np.array(kept, np.int32)
        read_ids = new_ids if self.token_map is None else self.token_map.translate(new_ids)
        self.num_computed = min(num_fed, self.num_tokens + min(num_accepted, len(kept)))
        self.tokens[self.num_tokens : self.num_tokens + len(read_ids)] = read_ids
        self.num_tokens += len(read_ids)
        self.output_ids += kept
        return new_ids

    def _choose(self, logits: Logits, num_accepted: int, draft_id: int | None) -> int:
        if draft_id is None or self.draft_logits is None:
            return self.sampler.choose(logits)
        return self.sampler.verify(logits, draft_id, self.draft_logits[num_accepted])

    def _take_token(self, token_id: int, kept: list[int]) -> str:
        """Add a token to ``kept`` unless it is an end token; returns the finish reason, "" for none."""
        counts_for_stop_words = self.sampler.num_output >= self.request.sampling.min_tokens
        self.sampler.push(token_id)
        if token_id in self.request.end_ids:
            if self.request.independent_noise:
                kept.append(token_id)
            return "stop"
        kept.append(token_id)
        if (counts_for_stop_words and self.stop_words.push(token_id)) or self.sampler.is_complete:
            return "stop"
        return "length" if self.num_output + len(kept) == self.request.max_tokens else ""

    def _all_prompt_log_probs(self, logits: Logits) -> LogProbs | None:
        parts, self._prompt_log_probs = self._prompt_log_probs, None
        if parts is None:
            return None
        none = LogProbs.of(logits[:0], NO_TOKENS, self.request.num_log_probs or 0)  # of a prompt of one token
        return LogProbs.concatenate([none, *parts])

    def _log_probs(self, logits: Logits, token_ids: TokenIds) -> LogProbs | None:
        if self.request.num_log_probs is None:
            return None
        return LogProbs.of(logits[: len(token_ids)], token_ids, self.request.num_log_probs)
