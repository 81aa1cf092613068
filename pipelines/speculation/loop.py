"""The draft-then-verify loop.

The loop knows neither Triton nor an engine: it is given two callables, and the same code runs against
engines in this process and against models behind Triton's BLS. It does not accept tokens, the target
does; the loop only counts what the target kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_plan import NO_DRAFT, DraftLength, KeepDrafting, Proposal
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import TokenIds

EngineCall = Callable[[GenerationRequest], Awaitable[Output]]
"""One proposal of the draft, or one verification by the target: a request in, its whole output back."""

EngineStream = Callable[[GenerationRequest], AsyncGenerator[Output, None]]
"""The target's answer to a request without draft tokens, token by token, until it is closed."""


@dataclass(frozen=True)
class Round:
    """What one target pass added to the output.

    Attributes:
        token_ids: int32 [n], new output tokens; empty only when the target ended the output at once.
        num_draft_tokens: Draft tokens that this round verified.
        num_accepted_tokens: Leading tokens of ``token_ids`` that were draft tokens.
        finish_reason: "" while the output goes on, else "stop" or "length".
        num_by_model: Leading ones of the verified draft tokens that are the draft model's; the others came
            without it.
        log_probs: The target's, of ``token_ids``; None if the request does not ask for them.
    """

    token_ids: TokenIds
    num_draft_tokens: int
    num_accepted_tokens: int
    finish_reason: str
    num_by_model: int = 0
    log_probs: LogProbs | None = None

    @property
    def accepted_mask(self) -> npt.NDArray[np.bool_]:
        """Mask bool [n], True where the output token was a draft token."""
        return np.arange(len(self.token_ids)) < self.num_accepted_tokens


async def speculate(
    request: GenerationRequest,
    draft: EngineCall,
    target: EngineCall,
    lengths: DraftLength,
    *,
    stream: EngineStream | None = None,
    use_draft_logits: bool = False,
) -> AsyncIterator[Round]:
    """Answer one request by rounds of drafting and verifying.

    The joined ``token_ids`` are the target's own output, whatever the draft proposes and whatever
    ``lengths`` decides. With ``use_draft_logits`` they follow the target's law instead, and are
    another sample of it. The first round drafts nothing: it reads the prompt and gives the first
    token as early as the target alone would.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1; the target accepts, either what it
    would have chosen itself under the noise it shares with the draft (arXiv:2408.07978) or, with
    ``use_draft_logits``, by the ratio rule (``Sampler.verify``).

    Args:
        request: The whole request; ``draft_input_ids`` empty. What of ``input_ids`` is not prompt is output
            that another pair gave; this one goes on with it.
        draft: Proposes ``max_tokens`` tokens after ``input_ids``; fewer if it would end the output.
        target: Verifies ``draft_input_ids`` and answers with the accepted ones and one of its own, or
            fewer if the output ends among them.
        lengths: Decides what each round drafts.
        stream: The target for rounds that verify nothing: as long as these follow each other it goes on with
            one answer, as the target alone would, for as many tokens as ``lengths`` says. None to ask
            ``target`` for each token.
        use_draft_logits: Accept by the ratio rule: the draft draws with noise of its own and hands its
            logits over.

    Yields:
        One ``Round`` per target pass; the last has a ``finish_reason``.

    Raises:
        DraftproofError: Whatever the target raises passes through. Where the draft fails, the round goes
            on without it.
    """
    known = request.input_ids
    num_emitted = 0
    finish_reason = ""
    plain: AsyncGenerator[Output, None] | None = None

    def step(num_tokens: int, **fields: Any) -> GenerationRequest:
        prompt_length = request.num_prompt_tokens
        return replace(request, input_ids=known, prompt_length=prompt_length, max_tokens=num_tokens, **fields)

    async def propose(num_tokens: int, keep_drafting: KeepDrafting | None) -> Output | None:
        wanted = step(
            num_tokens,
            keep_drafting=keep_drafting,
            num_log_probs=None,
            independent_noise=use_draft_logits,
            return_generation_logits=use_draft_logits,
        )
        with suppress(DraftproofError):  # whoever made ``draft`` counts and announces it
            return await draft(wanted)
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
            plan = lengths.next_round(num_remaining) if num_emitted else NO_DRAFT
            drafted = await propose(plan.max_tokens, plan.keep_drafting()) if plan.max_tokens else None
            proposal = plan.complete(drafted)
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
                num_by_model=min(proposal.num_by_model, num_verified),
                log_probs=verified.log_probs,
            )
    finally:
        if plain is not None:
            await plain.aclose()
