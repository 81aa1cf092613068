"""One request inside the executor: its tokens, how far they are computed, when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.executor.kv_cache import BlockTable
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling import choose_token
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
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
        draft_ids: int32, draft tokens that are not verified yet.
        is_verification: Whether the request ends with the token after its accepted draft tokens.
        table: Its blocks while it runs; None while it waits.
    """

    request: GenerationRequest
    tokens: TokenIds
    num_tokens: int
    num_prompt: int
    stop_words: StopWordMatcher
    outputs: asyncio.Queue[Output | DraftproofError]
    draft_ids: TokenIds
    is_verification: bool
    num_output: int = 0
    num_computed: int = 0
    table: BlockTable | None = None

    @classmethod
    def begin(cls, request: GenerationRequest, vocabulary: Vocabulary) -> Sequence:
        """State of a request that was just admitted."""
        num_known = len(request.input_ids)
        tokens = np.empty(num_known + request.max_tokens, np.int32)
        tokens[:num_known] = request.input_ids
        num_prompt = request.num_prompt_tokens
        return cls(
            request=request,
            tokens=tokens,
            num_tokens=num_known,
            num_prompt=num_prompt if num_prompt > 1 else 0,
            stop_words=StopWordMatcher(
                request.stop_words, vocabulary, request.input_ids[num_prompt:].tolist()
            ),
            outputs=asyncio.Queue(),
            draft_ids=request.draft_input_ids,
            is_verification=len(request.draft_input_ids) > 0,
        )

    @property
    def known_tokens(self) -> TokenIds:
        """int32 [num_tokens], a view."""
        return self.tokens[: self.num_tokens]

    @property
    def reads_prompt(self) -> bool:
        """Whether prompt is left to compute; otherwise rows are."""
        return self.num_computed < self.num_prompt

    def next_rows(self) -> TokenIds:
        """int32, the tokens to be computed as rows: known ones, then the draft tokens."""
        return np.concatenate((self.tokens[self.num_computed : self.num_tokens], self.draft_ids))

    def take_logits(self, logits: npt.NDArray[np.float32], num_fed: int) -> Output:
        """Choose the tokens that follow, accept draft tokens, and see whether the output ends.

        Args:
            logits: float32 [n, vocab_size], after the last known token and after the draft tokens that were
                fed with it: all of them, or none if the last known token was the end of a prompt chunk.
            num_fed: Leading positions whose keys and values are in the cache now, draft tokens included.

        Returns:
            What is new. ``num_computed`` then covers all known tokens but those the step did not feed.
        """
        chosen = np.empty(len(logits), np.int32)
        num_chosen = 0
        for row, row_logits in enumerate(logits):
            chosen[row] = choose_token(row_logits, self.request.sampling, self.num_tokens + row)
            num_chosen = row + 1
            if row < len(self.draft_ids) and chosen[row] != self.draft_ids[row]:
                break
        num_accepted = count_accepted(self.draft_ids, chosen[:num_chosen])
        is_verified = self.is_verification and num_accepted < num_chosen
        self.draft_ids = NO_TOKENS if is_verified else self.draft_ids[num_accepted:]

        kept, finish_reason = self._until_end(chosen[:num_chosen])
        self.num_computed = min(num_fed, self.num_tokens + min(num_accepted, len(kept)))
        self.tokens[self.num_tokens : self.num_tokens + len(kept)] = kept
        self.num_tokens += len(kept)
        self.num_output += len(kept)
        return Output(kept, finish_reason, is_final=bool(finish_reason) or is_verified)

    def _until_end(self, token_ids: TokenIds) -> tuple[TokenIds, str]:
        """The tokens up to the end of the output, if it is among them, and the finish reason."""
        for index, token_id in enumerate(token_ids.tolist()):
            if token_id == self.request.end_id:
                return token_ids[:index], "stop"
            if self.stop_words.push(token_id):
                return token_ids[: index + 1], "stop"
            if self.num_output + index + 1 == self.request.max_tokens:
                return token_ids[: index + 1], "length"
        return token_ids, ""
