"""Decides whether the draft reads a text that it does not know yet.

Before its first token a draft reads the whole prompt. For 32,000 tokens that takes longer than a short answer
could ever save, so such a request looks drafts up instead, until its answer is long enough.
"""

from __future__ import annotations

from pipelines.speculation.draft_length.step_costs import StepCosts

# Largest share that reading may take of the time in which the target alone would write the rest of an answer.
READING_SHARE, TRIAL_SHARE = 0.2, 0.02
# The rest is expected to be as long as the answer so far, and at least some tokens.
_LEAST_REST = 64


class UnreadText:
    """Counts what the draft has not read of one request, and decides whether it should.

    Attributes:
        num_tokens: Tokens of prompt and output so far.
        num_read: Leading tokens that the draft has read.

    Args:
        num_prompt: Tokens of the prompt.
        num_read: See the attribute.
        draft_costs: Step costs of the draft.
        target_costs: Step costs of the target.
    """

    def __init__(
        self, num_prompt: int, num_read: int, draft_costs: StepCosts, target_costs: StepCosts
    ) -> None:
        self.num_tokens = self._num_prompt = num_prompt
        self.num_read = num_read
        self._draft_costs = draft_costs
        self._target_costs = target_costs

    def is_worth_reading(self, share: float) -> bool:
        """Whether reading takes at most a share of the time for the expected rest of the answer."""
        num_rest = max(self.num_tokens - self._num_prompt, _LEAST_REST)
        rest_s = num_rest * float(self._target_costs.seconds(2, self.num_tokens))
        return self._draft_costs.reading_s(self.num_read, self.num_tokens) <= share * rest_s
