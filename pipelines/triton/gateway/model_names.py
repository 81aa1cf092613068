"""Maps the names by which clients ask for models to Triton's models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.triton.gateway.triton import OWN_PREFIX

ARM_PARAMETER = f"{OWN_PREFIX}arm"
"""Request parameter with the arm that must answer (``pipelines/triton/backend/header.py``)."""


@dataclass(frozen=True)
class ServedModel:
    """Says who answers requests to one name.

    Attributes:
        model: Triton's model.
        arm: The arm that must answer; "" for the model's own choice.
    """

    model: str
    arm: str = ""


ALIASES: Mapping[str, ServedModel] = {
    "generate": ServedModel("router", "stable"),
    "generate_target": ServedModel("router", "control"),
    "target": ServedModel("speculative", "control"),
}


class ModelNames:
    """Knows which aliases one server has: a model of the repository comes before an alias of its name.

    Args:
        repository: The model repository.
    """

    def __init__(self, repository: Path) -> None:
        self._aliases = {
            name: served
            for name, served in ALIASES.items()
            if not (repository / name / "config.pbtxt").exists()
        }

    def served(self, asked: str) -> ServedModel:
        """Return who answers requests to a name."""
        return self._aliases.get(asked) or ServedModel(asked)
