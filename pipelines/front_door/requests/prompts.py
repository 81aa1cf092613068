"""Turns prompts into token ids."""

from __future__ import annotations

import asyncio
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.front_door.served_model import ServedModel

_QUICK_CHARACTERS = 4096  # take about a millisecond; longer texts are tokenized on another thread

TokenIds = tuple[int, ...]


def prompts_of(prompt: Any) -> list[Any]:
    """Return the prompts of a request for completions: texts or token ids.

    Args:
        prompt: A text, token ids, or a list of either.

    Raises:
        InvalidRequestError: It has another type, or is an empty list.
    """
    prompts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise _wrong_type(prompt)
    return prompts


async def prompt_ids(model: ServedModel, prompts: list[Any], *, add_special_tokens: bool) -> list[TokenIds]:
    """Return the tokens of each prompt.

    Args:
        model: The model.
        prompts: Texts or token ids.
        add_special_tokens: Whether texts get the tokenizer's special tokens, such as BOS.

    Raises:
        InvalidRequestError: It has another type, is empty, or contains ids that are no tokens.
        PromptTooLongError: A prompt leaves no room for an answer.
    """
    found: list[TokenIds] = []
    for number, each in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if isinstance(each, str):
            ids = await encode(model, each, name, add_special_tokens=add_special_tokens)
        elif _is_ids(each):
            model.limits.check_ids(each, name)
            ids = tuple(each)
        else:
            raise _wrong_type(prompts)
        model.limits.check_length(len(ids), name)
        found.append(ids)
    return found


async def encode(
    model: ServedModel, text: str, name: str, *, add_special_tokens: bool, parse_special_tokens: bool = False
) -> TokenIds:
    """Return the tokens of a text; long ones are tokenized on another thread.

    Raises:
        InvalidRequestError: The text has no tokens, or names a special token that cannot be spelled.
        PromptTooLongError: The text is longer than any prompt.
    """
    model.limits.check_bytes(len(text.encode()), name)

    def work() -> list[int]:
        return model.tokenizer.encode(
            text, add_special_tokens=add_special_tokens, parse_special_tokens=parse_special_tokens
        )

    is_loaded = model.tokenizer.can_parse or not parse_special_tokens
    ids = work() if is_loaded and len(text) <= _QUICK_CHARACTERS else await asyncio.to_thread(work)
    model.limits.check_not_empty(len(ids), name)
    return tuple(ids)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)


def _wrong_type(prompt: Any) -> InvalidRequestError:
    return InvalidRequestError(
        "prompt has the wrong type",
        values=f"prompt={prompt!r:.200}",
        limit="a text, a list of texts, a list of token ids, or a list of such lists; none empty",
        remedy="send one of these",
    )
