"""Names where a server's pair comes from: a recipe, a package, or what a rollout has promoted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.building import package_arguments
from pipelines.errors import ServerStartError

_PROMOTED = "promoted.json"
_FORMAT = 1


@configuration.strict
@dataclass(frozen=True)
class PairSource:
    """A recipe or a package.

    Attributes:
        name: Name of a recipe, absolute path of its file, or absolute path of a package.
        public_key: Absolute path of the PEM file of the key that must have signed the package; "" for none.
        served_model_name: Name that clients send as ``model``; "" for that of the recipe.
        instead_of: Package in whose place a rollout promoted it; "" for none.
    """

    name: str
    public_key: str = ""
    served_model_name: str = ""
    instead_of: str = ""

    @classmethod
    def of(cls, text: str, public_key: Path | None = None) -> PairSource:
        """Return what a user named; a path counts from the current folder."""
        is_path = "/" in text or text.endswith((".yaml", ".yml"))
        name = str(Path(text).resolve()) if is_path else text
        return cls(name, str(public_key.resolve()) if public_key else "")

    @property
    def arguments(self) -> list[str]:
        """The options of ``build.repository``."""
        named = ["--served-model-name", self.served_model_name] if self.served_model_name else []
        if Path(self.name).is_absolute() and Path(self.name).is_dir():
            key = Path(self.public_key) if self.public_key else None
            return [*package_arguments(Path(self.name), key), *named]
        return ["--recipe", self.name, *named]

    @classmethod
    def promoted(cls, run_directory: Path) -> PairSource | None:
        """Return the pair that a rollout made the stable one of a run directory; None for its own.

        Raises:
            ServerStartError: The file cannot be read.
        """
        path = run_directory / _PROMOTED
        if not path.exists():
            return None
        remedy = f"remove {path} to serve the recipe's own pair"
        return configuration.read_json(cls, path, _FORMAT, ServerStartError, remedy)

    def promote(self, run_directory: Path) -> None:
        """Make servers of a run directory serve this pair from their next start on."""
        write_whole(run_directory / _PROMOTED, json.dumps({"format": _FORMAT, **asdict(self)}) + "\n")
