"""Find where the control differs from itself, because its kernels round differently.

It answers alone, then under load. Verification computes several positions in one pass, which the control
alone never does; so its own answers are also given to it as a prompt, whose log probabilities it computes in
such passes (``echo``). Where it would then prefer another token, it differs from itself too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.audit.arms import Arm, Difference, Margin
from pipelines.validation.openai.server.abilities import COMPLETIONS, Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer


def can_score(abilities: Abilities) -> bool:
    """Return whether a server can score its own answers."""
    return abilities.echo and abilities.token_ids and abilities.prompt_ids and abilities.completions


def score(server: OpenAIServer, prompt: Prompt, answer: Answer) -> Difference | None:
    """Let a server score its own answer in one pass, and find the first token that it would replace.

    Returns:
        The token and its margin; None if it would replace none, or scored nothing.
    """
    fields = {
        "prompt": [*answer.prompt_ids, *answer.token_ids],
        "max_tokens": 1,
        "echo": True,
        **server.log_prob_fields(COMPLETIONS),
    }
    try:
        scored = server.request(COMPLETIONS, fields)
    except DraftproofError:  # too long with one more token; the server counts what else went wrong
        return None
    begin = len(answer.prompt_ids)
    for place, row in enumerate(scored.log_probs[begin : begin + len(answer.token_ids)]):
        best = max(row.alternatives, key=row.alternatives.__getitem__, default=row.token)
        margin = row.alternatives.get(best, row.log_prob) - row.log_prob
        if margin > 0:
            return Difference(prompt.prompt_id, f"token {place}", row.token, best, Margin(margin))
    return None


def join_noise(name: str, loaded: Arm, scored: Sequence[Difference | None]) -> Arm:
    """Join both ways in which the control may differ from itself: the first of them at each prompt counts."""
    pairs = zip(loaded.differences, scored, strict=True)
    return Arm(name, tuple(first or second for first, second in pairs), loaded.missing)
