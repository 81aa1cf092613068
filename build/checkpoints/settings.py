"""Read the JSON files of a checkpoint, whose values people wrote, or somebody who means harm.

Everything that has a size is limited here: bytes, levels and items of a document, and the numbers that decide
how much memory is asked for.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import CheckpointError

MOST_BYTES = 1 << 25
"""Bytes of a file of settings, and of the header of a file of weights; the largest known index has half."""

_MOST_LEVELS, _MOST_ITEMS = 32, 1 << 16
_MOST = 1 << 20  # of a size that has no limit of its own
_LIMITS: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "block_count"), 1 << 12),
    **dict.fromkeys(
        (
            *("max_position_embeddings", "original_max_position_embeddings", "sliding_window"),
            *("context_length", "rope.scaling.original_context_length", "attention.sliding_window"),
        ),
        1 << 24,
    ),
}
_LARGEST = 1e30


class Settings:
    """Values of a JSON object, each checked when it is asked for.

    Args:
        values: The object.
        path: The file, for error messages.
        within: Name of the object in the file, for error messages; None for the whole file.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, within: str | None = None) -> None:
        self.values, self.path, self._within = values, path, within

    def part(self, key: str) -> Settings | None:
        """Return an object in this object; None if it is absent, null or empty."""
        value = self.get(key) or None
        if value is not None and not isinstance(value, dict):
            raise self.fail(f"{key}={value!r:.80} must be an object")
        within = key if self._within is None else f"{self._within}.{key}"
        return None if value is None else Settings(value, self.path, within)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the values."""
        return tuple(self.values)

    def fail(self, what: str, remedy: str = "use another model") -> CheckpointError:
        """Return the error that refuses the file."""
        where = "" if self._within is None else f"in {self._within}: "
        return CheckpointError(f"{self.path} cannot be used: {where}{what}", remedy)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as it is in the file; the default if it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer, at most what a network may have of it."""
        value, most = self.get(key, default), _LIMITS.get(key, _MOST)
        if type(value) is not int or not 1 <= value <= most:
            raise self.fail(f"{key}={value!r:.80} must be an integer from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < _LARGEST:
            raise self.fail(f"{key}={value!r:.80} must be a number above 0, below {_LARGEST:g}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a truth value; the default if it is absent or null."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"{key}={value!r:.80} must be true or false")
        return value

    def text(self, key: str) -> str | None:
        """Return a text; None if it is absent or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fail(f"{key}={value!r:.80} must be a text")
        return value

    def items(self, key: str, *kinds: type) -> list[Any]:
        """Return a list of values of these types; empty if it is absent or null."""
        value = self.get(key, [])
        if not isinstance(value, list) or len(value) > _MOST_ITEMS or {*map(type, value)} - {*kinds}:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise self.fail(f"{key}={value!r:.80} must be a list of {names}")
        return value

    def one_of(self, key: str, *allowed: Any) -> Any:
        """Return a value that must be one of these."""
        value = self.values.get(key)
        if value not in allowed:
            raise self.fail(f"{key}={value!r:.200}; supported: {', '.join(map(str, allowed))}")
        return value

    def refuse_unless(self, key: str, *allowed: Any) -> None:
        """Refuse values that change what the network computes in a way that is not implemented."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.fail(f"{key}={value!r:.200}; supported: {', '.join(map(str, allowed)) or 'none'}")


def parse_object(content: bytes, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: It is none, or is too large or too deeply nested.
    """
    if len(content) > most_bytes:
        raise ValueError(f"{len(content)} bytes, of at most {most_bytes}")
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError(f"more than {_MOST_LEVELS} levels of lists and objects") from None
    if not isinstance(document, dict):
        raise ValueError(f"a JSON {type(document).__name__}, no object")
    level: list[Any] = [document]
    for _ in range(_MOST_LEVELS):
        level = [
            each
            for holder in level
            for each in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(each, (dict, list))
        ]
    if level:
        raise ValueError(f"more than {_MOST_LEVELS} levels of lists and objects")
    return document


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with a JSON object.

    Raises:
        CheckpointError: The file is missing, too large, or is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            return parse_object(file.read(MOST_BYTES + 1))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {' '.join(str(error).split()):.200}",
            did_you_mean(path, "download the checkpoint to this directory, or correct its path"),
        ) from None


def did_you_mean(path: Path, otherwise: str) -> str:
    """Return the remedy for a path: if it does not exist, the neighbour with the closest name."""
    lost = next((each for each in (path, *path.parents) if each.parent.is_dir()), path)
    if lost.exists() or not lost.parent.is_dir():
        return otherwise
    near = difflib.get_close_matches(lost.name, [each.name for each in lost.parent.iterdir()], 1)
    return f"did you mean {lost.with_name(near[0])}?" if near else otherwise
