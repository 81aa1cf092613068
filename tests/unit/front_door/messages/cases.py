"""Models, tools and answers for the tests of messages."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipelines.front_door.messages.style import (
    HERMES,
    LLAMA_3,
    MISTRAL_LIST,
    MISTRAL_NAMES,
    CallStyle,
    MessageStyle,
)
from pipelines.front_door.messages.tools import Function
from pipelines.text.guides import GrammarCompiler
from pipelines.text.prompt_tokenizer import PromptTokenizer

SPECIAL = ("</s>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
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
NAMES = [function.name for function in TOOLS]

ARGUMENTS = '{"city": "S\u00e3o \\"}{\\" Paulo \\\\", "days": 2}'

CALLS = {
    HERMES: '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    LLAMA_3: '{"name": "%s", "parameters": %s}',
    MISTRAL_LIST: '[TOOL_CALLS] [{"name": "%s", "arguments": %s}]',
    MISTRAL_NAMES: "[TOOL_CALLS]%s[ARGS]%s",
}
TWO_CALLS = {
    HERMES: f"{CALLS[HERMES]}\n{CALLS[HERMES]}",
    MISTRAL_LIST: '[TOOL_CALLS][{"name": "%s", "arguments": %s}, {"name": "%s", "arguments": %s}]',
    MISTRAL_NAMES: CALLS[MISTRAL_NAMES] * 2,
}


def message_style(calls: CallStyle | None, *, can_think: bool = True) -> MessageStyle:
    """Return a style with the marks that the tokenizer has as special tokens."""
    return MessageStyle(calls, can_think, _IDS)


def tokens(text: str) -> list[int]:
    """Return the tokens of a text, with the special ones that it names."""
    return TOKENIZER.encode(text, add_special_tokens=False, parse_special_tokens=True)
