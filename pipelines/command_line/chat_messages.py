"""Check the messages of a conversation, and read them."""

from __future__ import annotations

import json
from typing import Any


def json_of_messages(messages: Any) -> str:
    """Return the messages of a conversation as JSON without spaces, with keys in their order.

    Args:
        messages: Value of the key ``messages``.

    Raises:
        ValueError: It is no conversation that a model can answer, with the reason.
    """
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages is no list of messages")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
        raise ValueError("a message is no JSON object with a role")
    for message in messages:
        content = message.get("content")
        # Calls of tools have no content.
        if not isinstance(content, str | list) and (content is not None or message["role"] != "assistant"):
            raise ValueError(f"a message of role {message['role']!r:.40} has no content, a text or a list")
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's, and leaves nothing to answer")
    text = json.dumps(messages, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
    return text


def last_content(messages: str) -> str:
    """Return the text of the last message of a conversation; "" if it has none.

    Args:
        messages: Messages as JSON, as ``json_of_messages`` returns them.
    """
    content = json.loads(messages)[-1].get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))
