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
            model.check_length(len(each), name)  # before each of them is checked
            ids = check_ids(model, each, name)
        else:
            raise _wrong_type(prompts)
        model.check_length(len(ids), name)
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
    model.check_size(text, name)

    def work() -> list[int]:
        return model.tokenizer.encode(
            text, add_special_tokens=add_special_tokens, parse_special_tokens=parse_special_tokens
        )

    is_loaded = model.tokenizer.can_parse or not parse_special_tokens
    ids = work() if is_loaded and len(text) <= _QUICK_CHARACTERS else await asyncio.to_thread(work)
    if not ids:
        raise InvalidRequestError(
            "the prompt is empty",
            values=f"{name} gives 0 tokens",
            limit="at least 1 token",
            remedy="send a prompt",
        )
    return tuple(ids)


def check_ids(model: ServedModel, ids: list[int], name: str) -> TokenIds:
    """Return token ids after checking them.

    Raises:
        InvalidRequestError: One is outside the vocabulary.
    """
    size = model.tokenizer.vocabulary.size
    wrong = next((each for each in ids if not 0 <= each < size), None)
    if wrong is not None:
        raise InvalidRequestError(
            "a token id is outside the vocabulary",
            values=f"{name} has id {wrong}",
            limit=f"0 to {size - 1}",
            remedy="use the tokenizer of the served model",
        )
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
