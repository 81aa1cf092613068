"""Recognises in a chat template how its model writes thoughts and tool calls.

Sources: the templates of the models, and the formats that vLLM's tool parsers read, which bear the names used
here (https://docs.vllm.ai/en/latest/features/tool_calling.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipelines.front_door.messages.call_styles.call_style import CallStyle
from pipelines.front_door.messages.call_styles.harmony import HARMONY, HARMONY_MARKS, HARMONY_THOUGHTS
from pipelines.front_door.messages.call_styles.json_calls import HERMES, LLAMA_3, MISTRAL_LIST, MISTRAL_NAMES
from pipelines.front_door.messages.call_styles.tagged_calls import MINICPM, QWEN_XML
from pipelines.front_door.messages.message import THINK_BEGIN, THINK_END

CALL_STYLES = (MISTRAL_NAMES, MISTRAL_LIST, QWEN_XML, MINICPM, HERMES, LLAMA_3)
"""The known styles of calls but Harmony. The first one whose signs a chat template has is its model's."""


@dataclass(frozen=True)
class MessageStyle:
    """The form in which a model writes messages.

    Attributes:
        calls: Its tool calls; None if its template has none, or none that is known here.
        thoughts: What stands before and behind thoughts, which may come before the answer; None without.
        special: Ids of those marks that are special tokens.
        has_developer: Whether the template knows the role ``developer``.
        takes_objects: Whether it takes the arguments of earlier calls as objects, as transformers recommends,
            or as JSON in a text, as OpenAI's API has them.
    """

    calls: CallStyle | None = None
    thoughts: tuple[str, str] | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    has_developer: bool = False
    takes_objects: bool = True

    @classmethod
    def of(cls, template: str, special_names: Mapping[str, int]) -> MessageStyle:
        """Recognise the style of a model.

        Args:
            template: The chat template for requests with tools.
            special_names: Ids of the special tokens by their names.
        """
        calls = next((style for style in (HARMONY, *CALL_STYLES) if style.is_used_by(template)), None)
        if calls is HARMONY and not special_names.keys() >= {*HARMONY_MARKS}:
            calls = None
        usual = (THINK_BEGIN, THINK_END) if THINK_END in template else None
        thoughts = HARMONY_THOUGHTS if calls is HARMONY else usual
        takes_objects = "tojson" in template or (calls is not None and not calls.has_json_arguments)
        style = cls(calls, thoughts, special_names, "developer" in template, takes_objects)
        return replace(style, special={name: special_names[name] for name in style.special_marks()})

    def special_marks(self, *, with_calls: bool = True) -> list[str]:
        """Return the names of special tokens that the marks of an answer have."""
        of_calls = self.calls if with_calls else None
        marks = "\n".join([*(self.thoughts or ()), *(of_calls.marks if of_calls is not None else ())])
        return [name for name in self.special if name in marks]
