"""Lists the fields of OpenAI's and vLLM's requests that mean nothing here, and settles them first.

A value that changes nothing is accepted; another one is refused with the reason, because what it asks for
would not be done. ``docs/reference/openai.md`` shows the table. A field that a request declares itself is not
meant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_json

from pipelines import configuration
from pipelines.errors import InternalError, InvalidRequestError

_IDLE_TOOL_KEYS = frozenset(
    {"cache_control", "defer_loading", "allowed_callers", "output_schema", "async", "eager_input_streaming"}
)


@dataclass(frozen=True)
class IdleField:
    """Fields that mean nothing here.

    Attributes:
        names: Their names.
        reason: Why the answer does not depend on them.
        accepted: The values that are accepted; None for all.
        remedy: What to send instead.
    """

    names: tuple[str, ...]
    reason: str
    accepted: tuple[JsonValue, ...] | None = None
    remedy: str = "leave it out"

    def check(self, name: str, value: JsonValue) -> None:
        """Refuse a value that is not accepted.

        Raises:
            InvalidRequestError: The value asks for something that is not done.
        """
        if self.accepted is None or value in self.accepted:
            return
        values = ", ".join(to_json(each).decode() for each in self.accepted)
        raise InvalidRequestError(
            f"{name} is not supported, because {self.reason}",
            values=f"{name}={value!r:.200}",
            limit=values or "no value",
            remedy=self.remedy,
        )


@configuration.strict
@dataclass(frozen=True)
class _Table:
    fields: tuple[IdleField, ...]


IDLE_FIELDS = configuration.read_yaml(
    _Table, Path(__file__).with_suffix(".yaml"), InternalError, "restore the file"
).fields
"""The table of ``fields.yaml``."""

_BY_NAME = {name: idle for idle in IDLE_FIELDS for name in idle.names}


def settle(
    document: Mapping[str, JsonValue], declared: Collection[str]
) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Return the fields of a request that mean something, and warnings of what is left out.

    Args:
        document: The request.
        declared: Fields that it has itself.

    Raises:
        InvalidRequestError: A field asks for something that is not done.
    """
    settled = {}
    for name, value in document.items():
        if name in declared or name not in _BY_NAME:
            settled[name] = value
        else:
            _BY_NAME[name].check(name, value)
    tools = settled.get("tools")
    if not isinstance(tools, list):
        return settled, ()
    others = {kind for tool in tools if (kind := _kind(tool)) != "function"}
    settled["tools"] = [_without_idle_keys(tool) for tool in tools if _kind(tool) == "function"]
    if not others:
        return settled, ()
    kinds = ", ".join(sorted(others))[:200]
    return settled, (f"tools of type {kinds} were left out: the model calls functions only",)


def _kind(tool: Any) -> str:
    """Return the type of a tool; what is none is refused later, as a function."""
    kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
    return kind if isinstance(kind, str) else "function"


def _without_idle_keys(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    return {
        key: _without_idle_keys(value) if key == "function" else value
        for key, value in tool.items()
        if key not in _IDLE_TOOL_KEYS
    }
