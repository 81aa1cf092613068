"""The record of a pair of engines, ``pair.json``, which lies in the folder of its loop.

``build`` writes it when it renders the model (``build/rendering/rendered_pair.py``). Servers read what they
serve, and a rollout what it must know of both pairs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.errors import DraftproofError, RepositoryError

LOOP = "speculative"
"""Model that runs the loop."""

PAIR_FILE = "pair.json"
FORMAT = 7


@configuration.strict
@dataclass(frozen=True)
class PairRecord:
    """A pair of engines in a repository.

    Attributes:
        name: Name of the recipe.
        fingerprint: Hash of everything that decides the pair's output and speed, hexadecimal.
        runtime: ``embedded`` or ``tensorrt_llm``.
        socket: Socket of the loop, as its process sees it.
        draft_engine_dir: Engine directory of the draft; "" without a draft.
        draft_digest: Hash of the files of the draft's engine; "" without a draft.
        target_engine_dir: Engine directory of the target.
        target_fingerprint: Hash of everything that the target's engine was built from.
        target_digest: Hash of the files of the target's engine.
        num_kv_blocks: KV cache blocks by role, on the embedded runtime.
        max_batch_size: Most concurrent requests.
    """

    name: str
    fingerprint: str
    runtime: str
    socket: str
    draft_engine_dir: str
    draft_digest: str
    target_engine_dir: str
    target_fingerprint: str
    target_digest: str
    num_kv_blocks: dict[str, int]
    max_batch_size: int

    @property
    def engine_dirs(self) -> dict[str, Path]:
        """Return the engine directories by role."""
        named = {"draft": self.draft_engine_dir, "target": self.target_engine_dir}
        return {role: Path(directory) for role, directory in named.items() if directory}

    def write(self, folder: Path) -> None:
        """Write the file into the folder of the pair's loop."""
        write_whole(folder / PAIR_FILE, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path, error: type[DraftproofError] = RepositoryError) -> PairRecord:
        """Read the file in a model's folder.

        Args:
            folder: The model's folder.
            error: The error of the caller.

        Raises:
            DraftproofError: The file is missing, or another version of Draftproof wrote it.
        """
        remedy = (
            "run 'draftproof stop' and 'draftproof serve'; if the error persists, remove the model's folder"
        )
        return configuration.read_json(cls, folder / PAIR_FILE, FORMAT, error, remedy)
