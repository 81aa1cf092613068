"""Models, tools and answers for the tests of messages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipelines.front_door.endpoints.response_format import ResponseFormat
from pipelines.front_door.messages.answer_format import GuideParts
from pipelines.front_door.messages.call_styles.call_style import CallStyle
from pipelines.front_door.messages.call_styles.harmony import HARMONY_MARKS
from pipelines.front_door.messages.call_styles.json_calls import HERMES, LLAMA_3, MISTRAL_LIST, MISTRAL_NAMES
from pipelines.front_door.messages.call_styles.tagged_calls import MINICPM, QWEN_XML
from pipelines.front_door.messages.grammar import AnswerPlan
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Calling, Function
from pipelines.text.guides import GrammarCompiler
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

THOUGHTS = ("<think>", "</think>")
SPECIAL = (*("</s>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), *HARMONY_MARKS)
"""The names that are special tokens in published models; ``<tool_call>`` and ``<think>`` are text there."""


def _byte_tokenizer(names: list[str]) -> Tokenizer:
    """Return a tokenizer with a token for each special name, and for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


TOKENIZER = PromptTokenizer(_byte_tokenizer(list(SPECIAL)).to_str().encode(), Path("tokenizer.json"))
COMPILER = GrammarCompiler(
    TOKENIZER.vocabulary,
    TOKENIZER.vocabulary.size,
    lambda: lambda text: TOKENIZER.encode(text, add_special_tokens=False),
)
_IDS = {name.decode(): token_id for token_id, name in TOKENIZER.vocabulary.special.items()}
HARMONY_IDS = {name: _IDS[name] for name in HARMONY_MARKS}

WEATHER = Function(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = Function(name="clock.now")
TOOLS = (WEATHER, CLOCK)

ARGUMENTS = '{"city": "S\u00e3o \\"}{\\" Paulo \\\\", "days": 2}'

_JSON_CALLS = {
    HERMES: '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    LLAMA_3: '{"name": "%s", "parameters": %s}',
    MISTRAL_LIST: '{"name": "%s", "arguments": %s}',
    MISTRAL_NAMES: "[TOOL_CALLS]%s[ARGS]%s",
}
ONE_CALL = (LLAMA_3,)
"""Styles that have at most one call."""


def written(style: CallStyle, *calls: tuple[str, str]) -> str:
    """Return calls, functions and JSON of arguments, as a model of a style writes them."""
    if style is MISTRAL_LIST:
        return f"[TOOL_CALLS] [{', '.join(_JSON_CALLS[style] % call for call in calls)}]"
    separator = "\n" if style in (HERMES, QWEN_XML) else ""
    return separator.join(_written(style, *call) for call in calls)


def _written(style: CallStyle, name: str, arguments: str) -> str:
    if style in _JSON_CALLS:
        return _JSON_CALLS[style] % (name, arguments)
    values = json.loads(arguments)
    texts = {
        key: each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        for key, each in values.items()
    }
    if style is QWEN_XML:
        inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"
    assert style is MINICPM
    quoted = {key: f"<![CDATA[{text}]]>" if set(text) & set("<>&") else text for key, text in texts.items()}
    inside = "".join(f'<param name="{key}">{text}</param>' for key, text in quoted.items())
    return f'<function name="{name}">{inside}</function>'


def message_style(calls: CallStyle | None, *, can_think: bool = True) -> MessageStyle:
    """Return a style with the marks that the tokenizer has as special tokens."""
    return MessageStyle(calls, THOUGHTS if can_think else None, _IDS)


def guide_of_answer(
    style: MessageStyle, thinking: Thinking, calling: Calling | None, content: GuideParts | None
) -> GuideParts | None:
    """Return the guide of an answer."""
    return AnswerPlan(style, calling, content).guide(thinking)


def response_of(reader: MessageReader, text: str, *, ends: str) -> dict[str, Any]:
    """Return what ``/v1/responses`` answers if a model writes a text and ends for a reason."""
    model: Any = SimpleNamespace(name="m", fingerprint="f", style=lambda **_: MessageStyle())
    asked = CompletionRequest(prompt_ids=(1,))
    return ResponseFormat({}, model, asked, reader, lambda kept: None).whole([chunk_of(text, ends)])


def chunk_of(text: str, ends: str = "") -> Chunk:
    """Return a chunk of an answer, whose tokens do not matter."""
    return Chunk(text, (), (), ends, 0.0, 0)


def tokens(text: str) -> list[int]:
    """Return the tokens of a text, with the special ones that it names."""
    return TOKENIZER.encode(text, add_special_tokens=False, parse_special_tokens=True)
