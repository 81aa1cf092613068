"""Look up the logit margin between two tokens, which distinguishes a near tie from a wrong answer.

The target alone answers again up to the divergence and returns the likeliest alternatives there. Their log
probabilities come from the raw logits, so the difference of two is the logit margin on that server, whatever
its runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipelines.client import Generation
from pipelines.client.comparison import Divergence
from pipelines.client.model_names import TARGET_ALONE
from pipelines.errors import DraftproofError
from pipelines.validation.exact.asking import Asked
from pipelines.validation.exact.proof import Finding
from pipelines.validation.exact.sampling_kinds import MAX_LOG_PROBS


@dataclass(frozen=True)
class Explanation:
    """Explanation of the two tokens at a divergence.

    Attributes:
        logit_margin: Logit of the target's token less that of the other; None if it is unknown.
        why_no_margin: Why the margin is unknown; "" if it is known.
        alternatives: Ids and log probabilities of the target's likeliest tokens there.
    """

    logit_margin: float | None
    why_no_margin: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


def explain(finding: Finding, client: Asked) -> Explanation:
    """Look up the two tokens of a divergence on the server that gave the answers."""
    divergence = finding.divergence
    if divergence is None:
        return Explanation(None, "there is no second answer")
    if divergence.kind not in ("token", "length"):
        return Explanation(None, "the tokens are equal")
    if divergence.expected_id is None:
        return Explanation(None, "the target's answer had ended")
    num_tokens = divergence.position + 1
    request = replace(
        finding.request,
        max_tokens=num_tokens,
        min_tokens=min(finding.request.min_tokens, num_tokens),
        num_log_probs=MAX_LOG_PROBS,
    )
    try:
        again = client.generate(request, TARGET_ALONE)
    except DraftproofError as error:
        return Explanation(None, f"the target did not answer again: {error}")
    if again.output_ids != finding.expected.output_ids[:num_tokens]:
        return Explanation(None, "the target's answer was different this time")
    return _margin(divergence, again)


def _margin(divergence: Divergence, again: Generation) -> Explanation:
    if not again.top_log_probs:
        return Explanation(None, "the server returns no log probabilities")
    alternatives = again.top_log_probs[-1]
    if divergence.actual_id is None:
        return Explanation(None, "the other answer had ended", alternatives)
    other = dict(alternatives).get(divergence.actual_id)
    if other is None:
        reason = f"the other token is not among the target's {len(alternatives)} likeliest"
        return Explanation(None, reason, alternatives)
    return Explanation(again.log_probs[-1] - other, alternatives=alternatives)
