"""Ask for answers that end before a stop word.

The word is a part of the control's own answer, so that the answer is known to contain it. It has two to seven
characters, so it begins and ends anywhere in tokens and, in a stream, between chunks.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.validation.openai.features.feature import Feature, Material
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question

_NAME = "stop words"
_SHORTEST, _NUM_LENGTHS = 2, 6
_UNKNOWN = "\ufffd"  # stands for a part of a character


def _ask(material: Material, number: int) -> Question | None:
    prompt, answer = material.prompts[number], material.answers[number]
    word = _word(answer.text, _SHORTEST + number % _NUM_LENGTHS) if answer else ""
    if not word:
        return None
    named = replace(prompt, prompt_id=f"{prompt.prompt_id}, {_NAME}")
    return Question(named, material.max_tokens, _NAME, {"stop": [word]})


def _word(text: str, length: int) -> str:
    """Return so many characters from the second half of a text; "" if there are none that can be used."""
    for start in range(len(text) // 2, len(text) - length):
        word = text[start : start + length]
        if _UNKNOWN not in word and word == word.strip() and not text.startswith(word):
            return word
    return ""


def _fault(question: Question, answer: Answer) -> str:
    (word,) = question.fields["stop"]
    return f"the answer contains its stop word {word!r}" if word in answer.text else ""


STOP_WORDS = Feature(_NAME, (_ask,), _fault, tokens_may_go_on=True)
