"""What TensorRT-LLM can do with a request: in rounds with a draft, by the target alone, or not at all.

A round is a request of its own to the C++ backend, which begins with no memory of the rounds before
(facts in ``docs/decisions/0019-nvidias-models-behind-the-loop.md``). So what counts from the beginning of
the output goes to the target alone, in one request, and the answer's ``draft_length`` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.errors import InvalidRequestError
from pipelines.serving.contract import GenerationCall
from pipelines.speculation.request import GenerationRequest

MAX_TOP_K = 1024  # TOP_K_MAX of samplingTopKKernels.h; what is above is clipped there


@dataclass(frozen=True)
class _AloneRule:
    """A request that only one undivided request can answer.

    Attributes:
        name: What the answer's ``draft_length`` calls it.
        applies: Whether a call is one.
    """

    name: str
    applies: Callable[[GenerationCall], bool]


ALONE_RULES = (
    # Draft and target share no noise. Without draft logits a draft token is accepted if it is what the target
    # drew or, by version, among what it could have drawn (externalDraftTokensKernels.cu): rare, or unlawful.
    _AloneRule(
        "sampling without use_draft_logits",
        lambda call: not call.request.sampling.is_greedy and not call.use_draft_logits,
    ),
    # Occurrences are counted anew from each request's input (penaltyKernels.cu, batchApplyPenalty).
    _AloneRule("penalties", lambda call: call.request.sampling.has_penalty),
    # The minimum counts from the request's input on (same place, hasMinLength).
    _AloneRule("min_tokens", lambda call: call.request.sampling.min_tokens > 0),
    # Matched against tokens that the request itself made (banWordsLayer.cpp; reading).
    _AloneRule("bad_words", lambda call: bool(call.request.bad_words)),
    # Not written for accepted draft tokens (externalDraftTokensLayer.cpp: outputLogProbs = nullptr).
    _AloneRule("log probabilities", lambda call: call.request.num_log_probs is not None),
)


def reason_for_target_alone(call: GenerationCall) -> str:
    """Why a request is answered by the target alone; "" if it need not be."""
    return next((rule.name for rule in ALONE_RULES if rule.applies(call)), "")


def refuse_unsupported(request: GenerationRequest) -> None:
    """Refuse what the target alone cannot do either.

    Raises:
        InvalidRequestError: The backend has no such input, would change the value, or would answer
            something else than the contract says.
    """
    sampling = request.sampling
    if sampling.min_p:
        raise _refusal(
            f"min_p={sampling.min_p}",
            "the tensorrtllm backend of 1.2.1 has no such input",
            "send 0, or use top_p",
        )
    if sampling.top_k > MAX_TOP_K:
        raise _refusal(
            f"top_k={sampling.top_k}",
            f"at most {MAX_TOP_K}: the engine clips what is above without a word",
            "send less, or 0 to sample among all tokens",
        )
    if sampling.min_tokens and len(request.end_ids) > 1:
        raise _refusal(
            f"min_tokens={sampling.min_tokens} where {len(request.end_ids)} tokens end a text",
            "the tensorrtllm backend keeps back one end token until then, and would end at another",
            "send the end_id that counts, or leave min_tokens out",
        )
    if request.num_log_probs:
        raise _refusal(
            f"num_log_probs={request.num_log_probs}",
            "the tensorrtllm backend gives log probabilities of the output tokens alone",
            "send num_log_probs=0",
        )
    if request.num_log_probs is not None and _changes_logits(request):
        raise _refusal(
            "return_log_probs with temperature, penalties, bias, bans or min_tokens",
            "log probabilities are the model's own; this backend gives them after those have acted",
            "ask for them greedily or at temperature 1, without the others",
        )


def _changes_logits(request: GenerationRequest) -> bool:
    sampling = request.sampling
    is_scaled = not sampling.is_greedy and sampling.temperature != 1.0
    is_banned = bool(request.bad_words or sampling.min_tokens)
    return is_scaled or is_banned or sampling.has_penalty or bool(sampling.logit_bias)


def _refusal(values: str, limit: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(
        "TensorRT-LLM cannot answer this request", values=values, limit=limit, remedy=remedy
    )
