"""Requests whose answers are as slow to read as they can be: bodies for ``/v1/chat/completions``.

Before readers kept their place, each chunk of such an answer was read with all that was held back before it.
Which token stands for a text ``/tokenize`` tells; a bias of 100 makes it the only one wherever it is allowed.
"""

from __future__ import annotations

from typing import Any

from tests.attacks.guides import Body, with_tools

_ANY: dict[str, Any] = {"type": "object", "properties": {"any": {}}, "required": ["any"]}


def of_one_token(token_id: int, max_tokens: int, num_functions: int = 500) -> Body:
    """Return a request whose answer is one token again and again, beside many functions.

    Spaces may stand before a call of each of them; a fence of Markdown may open one again and again.
    """
    return with_tools(*[_ANY] * num_functions) | _only(token_id, max_tokens)


def in_an_argument(token_id: int, max_tokens: int) -> Body:
    """Return a request for a call, with an argument of any type that is one token as often as it may be.

    Brackets nest it, digits make it one long number, and letters one long text.
    """
    return with_tools(_ANY) | {"tool_choice": "required"} | _only(token_id, max_tokens)


def in_a_list(max_tokens: int, num_items: int = 1000) -> Body:
    """Return a request for a call whose argument is a list of at least this many numbers."""
    numbers = {"type": "array", "items": {"enum": [1]}, "minItems": num_items}
    parameters = {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}
    return with_tools(parameters) | {"tool_choice": "required", "max_tokens": max_tokens}


def _only(token_id: int, max_tokens: int) -> Body:
    return {"logit_bias": {str(token_id): 100}, "max_tokens": max_tokens, "ignore_eos": True}
