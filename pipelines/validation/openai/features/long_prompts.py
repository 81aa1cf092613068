"""Ask prompts of up to thousands of tokens, joined from the others: the longest that the control takes."""

from __future__ import annotations

from functools import partial

from pipelines.validation.openai.features.feature import Feature, Material
from pipelines.validation.openai.server.questions import Question

_NAME = "long prompts"
_SIZES = (16_000, 8_000, 4_000, 2_000, 1_000, 500)  # characters
_SHARE = 0.75  # of the longest one, which is tried: others of its length may have more tokens


def _ask(size: int, material: Material, number: int) -> Question | None:
    """Return a prompt that begins differently from all others and ends with one of the comparison's."""
    length = size if number == 0 else int(size * _SHARE)
    parts = [material.text(number)]
    while sum(map(len, parts)) < length:
        parts.insert(0, material.text((number - len(parts)) % len(material.prompts)))
    prompt = material.named(number, _NAME, "\n\n".join(parts)[-length:])
    return Question(prompt, material.max_tokens, _NAME)


LONG_PROMPTS = Feature(_NAME, tuple(partial(_ask, size) for size in _SIZES), lambda question, answer: "")
