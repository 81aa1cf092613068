"""Runs the draft-then-verify loop.

The loop depends on neither Triton nor an engine: it calls two callables, so the same code runs with engines
in this process and with models of the server. The target accepts or rejects draft tokens; the loop only
counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    NothingAllowedError,
    RequestRefusedError,
)
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftLength, KeepDrafting
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.proposal import Proposal
from pipelines.speculation.request import MAX_STATES, GenerationRequest, Grammar, Output, TargetStates
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

TOKEN_SOURCES = ("target", "draft_model", "lookup", "grammar")
"""Sources of output tokens, by their numbers in ``Round.token_sources``."""

_FORCED_S = 0.05
"""Time of a round for forced tokens; a usual grammar takes 50 us."""

_FORCED_THREADS = ThreadPoolExecutor(2, thread_name_prefix="forced tokens")

EngineCall = Callable[[GenerationRequest], Awaitable[Output]]
"""A proposal of the draft or a verification by the target: takes a request and returns its whole output."""

EngineStream = Callable[[GenerationRequest], AsyncGenerator[Output, None]]
"""Streams the target's answer to a request without draft tokens, until it is closed."""


@dataclass(frozen=True)
class Round:
    """The result of one target pass.

    Attributes:
        token_ids: int32 [n], new output tokens; empty only if the target ended the output immediately.
        num_draft_tokens: Verified draft tokens.
        num_accepted_tokens: Leading tokens of ``token_ids`` that were draft tokens.
        finish_reason: "" while the output continues, otherwise "stop" or "length".
        num_forced: Leading draft tokens that the grammar forced.
        num_by_model: Draft tokens after them that came from the draft model; the others were looked up.
        num_predicted: Last draft tokens, those that were looked up in the client's prediction.
        log_probs: The target's log probabilities of ``token_ids``; None if not requested.
        prompt_log_probs: Those of the prompt, in the first round; None if not requested.
        num_cached: See ``Output``; of the first round.
    """

    token_ids: TokenIds
    num_draft_tokens: int
    num_accepted_tokens: int
    finish_reason: str
    num_forced: int = 0
    num_by_model: int = 0
    num_predicted: int = 0
    log_probs: LogProbs | None = None
    prompt_log_probs: LogProbs | None = None
    num_cached: int = 0

    @property
    def accepted_mask(self) -> npt.NDArray[np.bool_]:
        """Mask bool [n], True for accepted draft tokens."""
        return np.arange(len(self.token_ids)) < self.num_accepted_tokens

    @property
    def token_sources(self) -> npt.NDArray[np.int32]:
        """Source int32 [n] of each token, a number of ``TOKEN_SOURCES``."""
        sources = np.zeros(len(self.token_ids), np.int32)
        sources[: self.num_accepted_tokens] = 2
        sources[: min(self.num_accepted_tokens, self.num_forced + self.num_by_model)] = 1
        sources[: min(self.num_accepted_tokens, self.num_forced)] = 3
        return sources

    @property
    def num_accepted_predicted(self) -> int:
        """Accepted ones among the tokens of the prediction."""
        return max(self.num_accepted_tokens - (self.num_draft_tokens - self.num_predicted), 0)


async def speculate(
    request: GenerationRequest,
    draft: EngineCall,
    target: EngineCall,
    lengths: DraftLength,
    *,
    stream: EngineStream | None = None,
    use_draft_logits: bool = False,
) -> AsyncIterator[Round]:
    """Answer one request in rounds of drafting and verifying.

    The joined ``token_ids`` are the target's own output, whatever the draft proposes and ``lengths`` decides.
    Tokens that the request's grammar forces are drafted without the draft model.
    With ``use_draft_logits`` they are instead another sample from the target's distribution. The first round
    does not draft: it reads the prompt and returns the first token as early as the target alone would.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1. The target accepts the tokens that it would
    have chosen itself under the noise shared with the draft (arXiv:2408.07978) or, with ``use_draft_logits``,
    applies the ratio rule (``Sampler.verify``).

    Args:
        request: The whole request without ``draft_input_ids``. Tokens of ``input_ids`` after the prompt are
            output of another pair, from which this one continues.
        draft: Proposes ``max_tokens`` tokens after ``input_ids``; fewer if they would end the output.
        target: Verifies ``draft_input_ids`` and returns the accepted ones and one token of its own, or fewer
            if the output ends.
        lengths: Decides what each round drafts.
        stream: Streams the target's answer during consecutive rounds without drafts, for as many tokens as
            ``lengths`` decides. None to call ``target`` for each token.
        use_draft_logits: Whether to apply the ratio rule: the draft then draws with noise of its own and
            passes its logits on.

    Yields:
        One ``Round`` per target pass; the last has a ``finish_reason``.

    Raises:
        DraftproofError: The target failed. If the draft fails, the round continues without it; if it refuses
            the request, it is not asked again.
    """
    loop = _Loop(request, draft, target, lengths, stream, use_draft_logits)
    try:
        while not loop.finish_reason:
            proposal = await loop.propose()
            verified = await loop.verify(proposal)
            yield loop.take(proposal, verified)
        await loop.read_last_states()
    finally:
        await loop.close_stream()


@dataclass
class _Loop:
    """One request's output so far, and the steps of a round; arguments as for ``speculate``."""

    request: GenerationRequest
    draft: EngineCall
    target: EngineCall
    lengths: DraftLength
    stream: EngineStream | None
    use_draft_logits: bool
    num_emitted: int = 0
    finish_reason: str = ""
    open_stream: AsyncGenerator[Output, None] | None = None

    def __post_init__(self) -> None:
        self.known = self.request.input_ids
        self.states = _UnreadStates()
        grammar = None if self.use_draft_logits else self.request.grammar
        self.forced = None if grammar is None else _ForcedTokens(grammar)

    @property
    def _num_remaining(self) -> int:
        return self.request.max_tokens - self.num_emitted

    async def propose(self) -> Proposal:
        """Draft the tokens of a round: forced ones, then as ``lengths`` decides."""
        may_draft = self.num_emitted and not (self.request.grammar and self.request.grammar.slow_s)
        forced = await self._forced_tokens() if may_draft else NO_TOKENS
        max_draft_len = self.lengths.max_draft_len
        plan = self.lengths.next_round(self._num_remaining - len(forced)) if may_draft else NO_DRAFT
        num_wanted = min(plan.max_tokens, max_draft_len - len(forced))
        if len(forced) and self.states.begin is not None:
            num_wanted = 0  # a head cannot read tokens whose states the target has not computed
        drafted = await self._call_draft(forced, num_wanted, plan.keep_drafting) if num_wanted else None
        return plan.complete(drafted).behind(forced, max_draft_len)

    async def verify(self, proposal: Proposal) -> Output:
        """Return the target's tokens: accepted draft tokens and one of its own, or the next of its stream."""
        if self.stream is not None and not len(proposal.token_ids):
            if self.open_stream is None:
                self.open_stream = self.stream(self._step(self.lengths.num_alone(self._num_remaining)))
            verified = await anext(self.open_stream)
            if verified.is_final:
                await self.close_stream()
            return verified
        await self.close_stream()
        draft_logits = None
        if len(proposal.token_ids) and self.use_draft_logits:
            assert proposal.drafted is not None
            draft_logits = proposal.drafted.generation_logits
        return await self.target(
            self._step(
                len(proposal.token_ids) + 1,
                draft_input_ids=proposal.token_ids,
                draft_logits=draft_logits,
            )
        )

    def take(self, proposal: Proposal, verified: Output) -> Round:
        """Append the target's tokens to the output, and learn from the round."""
        draft_ids = proposal.token_ids
        num_verified = len(draft_ids) if verified.num_verified is None else verified.num_verified
        self.lengths.observe(proposal, verified.token_ids)
        self.known = np.concatenate((self.known, verified.token_ids))
        self.states.add(verified, len(self.known) - 1)
        self.num_emitted += len(verified.token_ids)
        if verified.finish_reason == "stop":
            self.finish_reason = "stop"
        elif not self._num_remaining:
            self.finish_reason = "length"
        return Round(
            token_ids=verified.token_ids,
            num_draft_tokens=num_verified,
            num_accepted_tokens=count_accepted(draft_ids[:num_verified], verified.token_ids),
            finish_reason=self.finish_reason,
            num_forced=min(proposal.num_forced, num_verified),
            num_by_model=min(proposal.num_by_model, max(num_verified - proposal.num_forced, 0)),
            num_predicted=max(num_verified - (len(draft_ids) - proposal.num_predicted), 0),
            log_probs=verified.log_probs,
            prompt_log_probs=verified.prompt_log_probs,
            num_cached=verified.num_cached,
        )

    async def read_last_states(self) -> None:
        """Let a head read what it has not drafted from: the target's cache will have it in a further turn."""
        if self.states.num_states:
            await self._call_draft(NO_TOKENS, 1, None)

    async def close_stream(self) -> None:
        """Close the target's stream, if one is open."""
        if self.open_stream is not None:
            await self.open_stream.aclose()
            self.open_stream = None

    async def _forced_tokens(self) -> TokenIds:
        limit = min(self.lengths.max_draft_len, self._num_remaining - 1)
        if self.forced is None or not limit:
            return NO_TOKENS
        return (await self.forced.after(self.known[self.request.num_prompt_tokens :]))[:limit]

    async def _call_draft(
        self, forced: TokenIds, num_tokens: int, keep_drafting: KeepDrafting | None
    ) -> Output | None:
        wanted = replace(
            self._step(num_tokens),
            input_ids=np.concatenate((self.known, forced)),
            keep_drafting=keep_drafting,
            num_log_probs=None,
            independent_noise=self.use_draft_logits,
            return_generation_logits=self.use_draft_logits,
            return_states=False,
            target_states=self.states.unread(),
        )
        try:
            drafted = await self.draft(wanted)
            self.states.clear()
            return drafted
        except DraftproofError as error:  # ``WatchedDraft`` counts and logs it
            lacks_tokens = isinstance(error, NothingAllowedError)  # of those that the grammar allows here
            if isinstance(error, InvalidRequestError | RequestRefusedError) and not lacks_tokens:
                self.lengths.note_refusal()  # it would refuse the next round, too
            return None

    def _step(self, num_tokens: int, **fields: Any) -> GenerationRequest:
        request = self.request
        return replace(
            request,
            input_ids=self.known,
            prompt_length=request.num_prompt_tokens,
            max_tokens=num_tokens,
            prompt_log_probs=request.prompt_log_probs and not self.num_emitted,
            return_states=self.lengths.max_draft_len > 0,
            **fields,
        )


class _ForcedTokens:
    """The tokens that a grammar forces, computed on another thread and used over many rounds.

    A forced text may be long, so that its tokens take longer than a round: then they help a later one.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._begin = 0  # tokens of the output before ``_ids``
        self._ids = NO_TOKENS
        self._running: asyncio.Future[TokenIds] | None = None

    async def after(self, output_ids: TokenIds) -> TokenIds:
        """Return the tokens that must follow an output, int32 [n]; none if that takes too long."""
        if self._running is None:
            if len(kept := self._rest(output_ids)):
                return kept
            self._begin = len(output_ids)
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(_FORCED_THREADS, self._grammar.forced_after, output_ids)
        await asyncio.wait((self._running,), timeout=_FORCED_S)
        if not self._running.done():
            return NO_TOKENS
        running, self._running, self._ids = self._running, None, NO_TOKENS
        with suppress(InvalidRequestError):  # the target's choice fails in the same way, also without drafts
            self._ids = running.result()
        return self._rest(output_ids)

    def _rest(self, output_ids: TokenIds) -> TokenIds:
        """Return the tokens behind an output, if it has the others."""
        written = output_ids[self._begin :]
        is_kept = np.array_equal(self._ids[: len(written)], written)
        return self._ids[len(written) :] if is_kept else NO_TOKENS


class _UnreadStates:
    """Hidden states of the target that a trained head has not read yet, at most ``MAX_STATES`` and a round's.

    Attributes:
        begin: First position whose state is known; None if the target returns no states.
        num_states: Number of states that are kept.
    """

    def __init__(self) -> None:
        self.begin: int | None = None
        self._parts: deque[npt.NDArray[np.float32]] = deque()
        self.num_states = 0

    def add(self, output: Output, end: int) -> None:
        """Keep the states of an output that are new; the last one is that of position ``end - 1``."""
        states = output.states
        if states is None:
            return
        if self.begin is None:
            self.begin = end - len(states)
            if self.begin:
                # A head caches one position less of a beginning that texts share: a position needs the token
                # behind it. The state of the one between is not known, and the nearest stands for it.
                self.begin -= 1
                states = np.concatenate((states[:1], states))
        else:  # the target may have computed earlier positions again
            states = states[len(states) - len(output.token_ids) :]
        self._parts.append(states)
        self.num_states += len(states)
        while self.num_states - len(self._parts[0]) >= MAX_STATES:
            self.num_states -= len(self._parts.popleft())

    def unread(self) -> TargetStates | None:
        """Return them for a draft; None if the target returns no states."""
        if self.begin is None:
            return None
        return TargetStates(tuple(self._parts), self.begin)  # joined only if a head reads them

    def clear(self) -> None:
        """Forget them: the draft has read them."""
        self._parts.clear()
        self.num_states = 0
