"""Directories of engines, addressed by content: an engine that is there need not be built again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.manifest import is_complete, sha256_json


@dataclass(frozen=True)
class EnginePlan:
    """An engine that shall exist.

    Attributes:
        role: ``draft`` or ``target``.
        directory: Where it is or will be.
        identity: Everything that decides its content.
        fingerprint: SHA-256 of the identity.
    """

    role: str
    directory: Path
    identity: dict[str, Any]
    fingerprint: str

    def is_built(self) -> bool:
        """Whether the directory holds this engine now."""
        return is_complete(self.directory, self.fingerprint)


def plan_engine(recipe_folder: Path, role: str, identity: dict[str, Any]) -> EnginePlan:
    """Name the directory of an engine after everything that decides its content.

    Args:
        recipe_folder: ``engines/<recipe>``.
        role: ``draft`` or ``target``.
        identity: A JSON value.
    """
    fingerprint = sha256_json(identity)
    return EnginePlan(role, recipe_folder / f"{role}-{fingerprint[:16]}", identity, fingerprint)
