"""Read the JSON files of a checkpoint, whose values people wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import CheckpointError


class Settings:
    """Values of a JSON object, each checked when it is asked for.

    Args:
        values: The object.
        path: The file, for error messages.
        within: Name of the object in the file, for error messages; None for the whole file.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, within: str | None = None) -> None:
        self._values, self._path, self._within = values, path, within

    def part(self, key: str) -> Settings | None:
        """Return an object in this object; None if it is absent, null or empty."""
        value = self.get(key) or None
        if value is not None and not isinstance(value, dict):
            raise self.fail(f"{key}={value!r:.80}", f"{key} must be an object")
        within = key if self._within is None else f"{self._within}.{key}"
        return None if value is None else Settings(value, self._path, within)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the values."""
        return tuple(self._values)

    def fail(self, values: str, limit: str, remedy: str = "use another model") -> CheckpointError:
        """Return the error that refuses the file."""
        if self._within is not None:
            values = f"in {self._within}: {values}"
        return CheckpointError(f"{self._path} cannot be used", values=values, limit=limit, remedy=remedy)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as it is in the file; the default if it is absent or null."""
        value = self._values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{key}={value!r}", f"{key} must be an integer of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.fail(f"{key}={value!r}", f"{key} must be a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return a truth value; False if it is absent or null."""
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(f"{key}={value!r:.80}", f"{key} must be true or false")
        return value

    def one_of(self, key: str, *allowed: Any) -> Any:
        """Return a value that must be one of these."""
        value = self._values.get(key)
        if value not in allowed:
            raise self.fail(f"{key}={value!r:.200}", f"supported: {', '.join(map(str, allowed))}")
        return value

    def refuse_unless(self, key: str, *allowed: Any) -> None:
        """Refuse values that change what the network computes in a way that is not implemented."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.fail(f"{key}={value!r:.200}", f"supported: {', '.join(map(str, allowed)) or 'none'}")


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        CheckpointError: The file is missing or is not a JSON object.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} cannot be read",
            values=" ".join(str(error).split()),
            limit="a checkpoint directory contains config.json, weights and tokenizer.json",
            remedy="download the checkpoint to this directory, or correct its path",
        ) from None
    if not isinstance(raw, dict):
        raise Settings({}, path).fail(f"a JSON {type(raw).__name__}", "a JSON object")
    return raw
