"""Runs the draft-then-verify loop.

The loop depends on neither Triton nor an engine: it calls two callables, so the same code runs with engines
in this process and with models of the server. The target accepts or rejects draft tokens; the loop only
counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
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
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftLength, KeepDrafting, Proposal
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

TOKEN_SOURCES = ("target", "draft_model", "lookup", "grammar")
"""Sources of output tokens, by their numbers in ``Round.token_sources``."""

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
        log_probs: The target's log probabilities of ``token_ids``; None if not requested.
        prompt_log_probs: Those of the prompt, in the first round; None if not requested.
    """

    token_ids: TokenIds
    num_draft_tokens: int
    num_accepted_tokens: int
    finish_reason: str
    num_forced: int = 0
    num_by_model: int = 0
    log_probs: LogProbs | None = None
    prompt_log_probs: LogProbs | None = None

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
    known = request.input_ids
    num_emitted = 0
    has_begun = False
    finish_reason = ""
    plain: AsyncGenerator[Output, None] | None = None

    def step(num_tokens: int, **fields: Any) -> GenerationRequest:
        prompt_length = request.num_prompt_tokens
        returns_prompt = request.prompt_log_probs and not has_begun
        return replace(
            request,
            input_ids=known,
            prompt_length=prompt_length,
            max_tokens=num_tokens,
            **{"prompt_log_probs": returns_prompt, **fields},
        )

    def forced_tokens(num_remaining: int) -> TokenIds:
        limit = min(lengths.max_draft_len, num_remaining - 1)
        if request.grammar is None or use_draft_logits or not num_emitted or not limit:
            return NO_TOKENS
        return request.grammar.forced_after(known[request.num_prompt_tokens :])[:limit]

    async def propose(forced: TokenIds, num_tokens: int, keep_drafting: KeepDrafting | None) -> Output | None:
        wanted = replace(
            step(num_tokens),
            input_ids=np.concatenate((known, forced)),
            keep_drafting=keep_drafting,
            num_log_probs=None,
            independent_noise=use_draft_logits,
            return_generation_logits=use_draft_logits,
        )
        with suppress(DraftproofError):  # ``WatchedDraft`` counts and logs it
            try:
                return await draft(wanted)
            except NothingAllowedError:
                return None  # it lacks all tokens that the grammar allows here
            except (InvalidRequestError, RequestRefusedError):
                lengths.note_refusal()  # it would refuse the next round, too
        return None

    async def verify(proposal: Proposal) -> Output:
        draft_logits = None
        if len(proposal.token_ids) and use_draft_logits:
            assert proposal.drafted is not None
            draft_logits = proposal.drafted.generation_logits
        return await target(
            step(
                len(proposal.token_ids) + 1,
                draft_input_ids=proposal.token_ids,
                draft_logits=draft_logits,
                draft_survival=proposal.survival,
            )
        )

    try:
        while not finish_reason:
            num_remaining = request.max_tokens - num_emitted
            forced = forced_tokens(num_remaining)
            plan = lengths.next_round(num_remaining - len(forced)) if num_emitted else NO_DRAFT
            num_wanted = min(plan.max_tokens, lengths.max_draft_len - len(forced))
            drafted = await propose(forced, num_wanted, plan.keep_drafting()) if num_wanted else None
            proposal = plan.complete(drafted).behind(forced, lengths.max_draft_len)
            draft_ids = proposal.token_ids
            if stream is not None and not len(draft_ids):
                plain = plain or stream(step(lengths.num_alone(num_remaining)))
                verified = await anext(plain)
                if verified.is_final:
                    await plain.aclose()
                    plain = None
            else:
                if plain is not None:
                    await plain.aclose()
                    plain = None
                verified = await verify(proposal)
            num_verified = len(draft_ids) if verified.num_verified is None else verified.num_verified
            lengths.observe(proposal, verified.token_ids)
            has_begun = True

            known = np.concatenate((known, verified.token_ids))
            num_emitted += len(verified.token_ids)
            if verified.finish_reason == "stop":
                finish_reason = "stop"
            elif num_emitted == request.max_tokens:
                finish_reason = "length"
            yield Round(
                token_ids=verified.token_ids,
                num_draft_tokens=num_verified,
                num_accepted_tokens=count_accepted(draft_ids[:num_verified], verified.token_ids),
                finish_reason=finish_reason,
                num_forced=min(len(forced), num_verified),
                num_by_model=min(proposal.num_by_model, max(num_verified - len(forced), 0)),
                log_probs=verified.log_probs,
                prompt_log_probs=verified.prompt_log_probs,
            )
    finally:
        if plain is not None:
            await plain.aclose()
