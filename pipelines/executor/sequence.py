"""One request inside the executor: its tokens, how far they are computed, when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.executor.kv_cache import BlockTable
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampler import Sampler
from pipelines.speculation.token_ids import NO_TOKENS, Logits, TokenIds
from pipelines.text.stop_words import StopWordMatcher
from pipelines.text.vocabulary import Vocabulary


@dataclass(eq=False)
class Sequence:
    """State of one request.

    Attributes:
        tokens: int32 buffer; the first ``num_tokens`` are known.
        num_prompt: Leading tokens that are computed as prompt, in chunks of at least two. A prompt of a
            single token cannot be a chunk, so it counts as 0 here and is computed as a row.
        num_computed: Leading positions whose keys and values are in the cache.
        sampler: Turns logits into tokens; has seen all known tokens.
        draft_ids: int32, draft tokens that are not verified yet.
        draft_logits: float32 [len(draft_ids), vocab_size] for the ratio rule, else None.
        draft_survival: float64 [len(draft_ids)] while draft tokens can be left out, else None.
        is_verification: Whether the request ends with the token after its accepted draft tokens.
        margins: Of the tokens proposed so far.
        table: Its blocks while it runs; None while it waits.
    """

    request: GenerationRequest
    tokens: TokenIds
    num_tokens: int
    num_prompt: int
    sampler: Sampler
    stop_words: StopWordMatcher
    outputs: asyncio.Queue[Output | DraftproofError]
    draft_ids: TokenIds
    draft_logits: Logits | None
    draft_survival: npt.NDArray[np.float64] | None
    is_verification: bool
    num_output: int = 0
    num_computed: int = 0
    margins: list[float] = field(default_factory=list)
    table: BlockTable | None = None

    @classmethod
    def begin(cls, request: GenerationRequest, vocabulary: Vocabulary, sampler: Sampler) -> Sequence:
        """State of a request that was just admitted."""
        num_known = len(request.input_ids)
        tokens = np.empty(num_known + request.max_tokens, np.int32)
        tokens[:num_known] = request.input_ids
        num_prompt = request.num_prompt_tokens
        # A stop word counts only after the first min_tokens of the output.
        watched_ids = request.input_ids[num_prompt + request.sampling.min_tokens :]
        return cls(
            request=request,
            tokens=tokens,
            num_tokens=num_known,
            num_prompt=num_prompt if num_prompt > 1 else 0,
            sampler=sampler,
            stop_words=StopWordMatcher(request.stop_words, vocabulary, watched_ids.tolist()),
            outputs=asyncio.Queue(),
            draft_ids=request.draft_input_ids,
            draft_logits=request.draft_logits,
            draft_survival=request.draft_survival,
            is_verification=len(request.draft_input_ids) > 0,
        )

    @property
    def known_tokens(self) -> TokenIds:
        """int32 [num_tokens], a view."""
        return self.tokens[: self.num_tokens]

    @property
    def is_proposing(self) -> bool:
        """Whether it goes on with a proposal, of which nothing is given before its end."""
        return self.request.keep_drafting is not None and self.table is not None

    @property
    def reads_prompt(self) -> bool:
        """Whether prompt is left to compute; otherwise rows are."""
        return self.num_computed < self.num_prompt

    def next_rows(self) -> TokenIds:
        """int32, the tokens to be computed as rows: known ones, then the draft tokens."""
        return np.concatenate((self.tokens[self.num_computed : self.num_tokens], self.draft_ids))

    def leave_out(self, count: int) -> None:
        """Do not verify the last ``count`` draft tokens, at least 1."""
        self.draft_ids = self.draft_ids[:-count]

    def take_logits(self, logits: Logits, num_fed: int) -> Output | None:
        """Choose the tokens that follow, accept draft tokens, and see whether the output ends.

        Args:
            logits: float32 [n, vocab_size], after the last known token and after the draft tokens that were
                fed with it: all of them, or none if the last known token was the end of a prompt chunk.
            num_fed: Leading positions whose keys and values are in the cache now, draft tokens included.

        Returns:
            What is new; None while a proposal goes on, which is given as a whole. ``num_computed`` then
            covers all known tokens but those the step did not feed.

        Raises:
            DraftproofError: As ``Sampler.choose`` and ``Sampler.verify``.
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
            generation_logits=(logits[: len(kept)].copy() if self.request.return_generation_logits else None),
            num_verified=num_verified,
        )

    def _propose(self, logits: Logits, num_fed: int) -> Output | None:
        """Take one token of a proposal that ends where drafting on no longer pays."""
        assert self.request.keep_drafting is not None
        token_id, margin = self.sampler.propose(logits)
        kept: list[int] = []
        finish_reason = self._take_token(token_id, kept)
        self.margins += [margin] * len(kept)
        self._append(kept, num_fed, num_accepted=0)
        if not finish_reason and self.request.keep_drafting(margin):
            return None
        proposed = self.known_tokens[self.num_tokens - self.num_output :].copy()
        margins = np.array(self.margins, np.float32)
        return Output(proposed, finish_reason or "length", is_final=True, margins=margins)

    def _append(self, kept: list[int], num_fed: int, num_accepted: int) -> TokenIds:
        new_ids = np.array(kept, np.int32)
        self.num_computed = min(num_fed, self.num_tokens + min(num_accepted, len(kept)))
        self.tokens[self.num_tokens : self.num_tokens + len(kept)] = new_ids
        self.num_tokens += len(kept)
        self.num_output += len(kept)
        return new_ids

    def _choose(self, logits: Logits, num_accepted: int, draft_id: int | None) -> int:
        if draft_id is None or self.draft_logits is None:
            return self.sampler.choose(logits)
        return self.sampler.verify(logits, draft_id, self.draft_logits[num_accepted])

    def _take_token(self, token_id: int, kept: list[int]) -> str:
        """Add a token to ``kept`` unless it only ends the output; the finish reason, "" for none."""
        counts_for_stop_words = self.sampler.num_output >= self.request.sampling.min_tokens
        self.sampler.push(token_id)
        if token_id in self.request.end_ids:
            if self.request.independent_noise:
                kept.append(token_id)
            return "stop"
        kept.append(token_id)
        if counts_for_stop_words and self.stop_words.push(token_id):
            return "stop"
        return "length" if self.num_output + len(kept) == self.request.max_tokens else ""

    def _log_probs(self, logits: Logits, token_ids: TokenIds) -> LogProbs | None:
        if self.request.num_log_probs is None:
            return None
        return LogProbs.of(logits[: len(token_ids)], token_ids, self.request.num_log_probs)
