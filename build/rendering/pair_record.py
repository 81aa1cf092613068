"""Read and write ``pair.json``, which describes the pair of engines that a rendered model belongs to.

The file is in the model's folder. A rollout reads it to learn about both pairs
(``pipelines/canary/controller/candidate.py``), and ``pipelines/deploy/triton/models.py`` reads whether a
server loads the model when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build.recipe import Recipe
from build.rendering.template_values import PairNames
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.errors import RepositoryError
from pipelines.manifest import sha256_json

PAIR_FILE = "pair.json"
FORMAT = 3
SHORT_HASH = 8
"""Digits of the hash in the names of a second pair's models; few, as the path of a socket is limited."""


@configuration.strict
@dataclass(frozen=True)
class PairRecord:
    """A pair of engines in a repository.

    Attributes:
        name: Name of the recipe.
        fingerprint: Hash of everything that decides the pair's output and speed, hexadecimal.
        runtime: ``embedded`` or ``tensorrt_llm``.
        speculative_model: Model that runs the speculative loop.
        control_model: Model whose process answers by the target alone. On TensorRT-LLM, that of the other
            pair if they share the target.
        models: Models that were rendered for this pair, in loading order.
        socket: Socket of ``speculative_model``, as its process sees it.
        control_socket: Socket at which it does.
        draft_engine_dir: Engine directory of the draft.
        draft_fingerprint: Hash of everything that the draft's engine was built from.
        draft_digest: Hash of the files of the draft's engine.
        target_engine_dir: Engine directory of the target.
        target_fingerprint: Hash of everything that the target's engine was built from.
        target_digest: Hash of the files of the target's engine.
        max_draft_len: Most draft tokens of a round.
        num_draft_tokens: Draft tokens of a round, a number or ``adaptive``.
        draft_length_file: File that overrides ``num_draft_tokens`` of both pairs while the server runs.
        calibration_file: Measurements of the pair; "" on TensorRT-LLM.
        num_kv_blocks: KV cache blocks by role, on the embedded runtime.
        gpu_bytes: Estimated memory of the pair on each GPU, by number, on TensorRT-LLM.
        gpu_usable_bytes: Memory of a GPU for all pairs together.
        loads_at_start: Whether a server loads the models when it starts.
    """

    name: str
    fingerprint: str
    runtime: str
    speculative_model: str
    control_model: str
    models: tuple[str, ...]
    socket: str
    control_socket: str
    draft_engine_dir: str
    draft_fingerprint: str
    draft_digest: str
    target_engine_dir: str
    target_fingerprint: str
    target_digest: str
    max_draft_len: int
    num_draft_tokens: str
    draft_length_file: str
    calibration_file: str
    num_kv_blocks: dict[str, int]
    gpu_bytes: dict[str, int]
    gpu_usable_bytes: int
    loads_at_start: bool

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        draft: Mapping[str, Any],
        target: Mapping[str, Any],
        values: Mapping[str, str],
        names: PairNames,
        models: Sequence[str],
        *,
        loads_at_start: bool,
        memory: MemoryPlan | None = None,
    ) -> PairRecord:
        """Return the record of a pair that is rendered with these values.

        Args:
            recipe: Recipe of the pair.
            draft: Manifest of the draft's engine.
            target: Manifest of the target's engine.
            values: Values of the templates.
            names: Names of the models that the pair uses.
            models: Models that are rendered for it.
            loads_at_start: See the attribute.
            memory: How the engines share their GPUs, on TensorRT-LLM.
        """
        blocks = {}
        if recipe.runtime == "embedded":
            blocks = {role: int(values[f"{role}_num_kv_blocks"]) for role in ("draft", "target")}
        return cls(
            name=recipe.name,
            fingerprint=pair_fingerprint(recipe, draft, target),
            runtime=recipe.runtime,
            speculative_model=names.speculative,
            control_model=names.control(recipe.runtime),
            models=tuple(models),
            socket=values["speculative_socket"],
            control_socket=values["target_socket"],
            draft_engine_dir=values["draft_engine_dir"],
            draft_fingerprint=engine_fingerprint(draft),
            draft_digest=values["draft_engine_digest"],
            target_engine_dir=values["target_engine_dir"],
            target_fingerprint=engine_fingerprint(target),
            target_digest=values["target_engine_digest"],
            max_draft_len=recipe.serving.max_draft_len,
            num_draft_tokens=values["num_draft_tokens"],
            draft_length_file=values["draft_length_file"],
            calibration_file=values.get("calibration_file", ""),
            num_kv_blocks=blocks,
            gpu_bytes={} if memory is None else _gpu_bytes(memory, models, names),
            gpu_usable_bytes=0 if memory is None else memory.usable_bytes,
            loads_at_start=loads_at_start,
        )

    def document(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": FORMAT, **asdict(self), "models": list(self.models)}

    def write(self, folder: Path) -> None:
        """Write the file into a model's folder."""
        write_whole(folder / PAIR_FILE, json.dumps(self.document(), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> PairRecord:
        """Read the file in a model's folder.

        Raises:
            RepositoryError: It is missing, or another version of Draftproof wrote it.
        """
        path = folder / PAIR_FILE
        remedy = (
            "run 'make repository', then 'make stop serve'; if the error persists, remove the model's folder"
        )
        return configuration.read_json(cls, path, FORMAT, RepositoryError, remedy)


def engine_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return the hash of everything an engine was built from; equal engines of two recipes have the same.

    Raises:
        RepositoryError: The manifest does not contain it.
    """
    fingerprint = manifest.get("fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint:
        raise RepositoryError(
            "an engine's manifest has no fingerprint",
            values=f"fingerprint={fingerprint!r}",
            limit="a hash, written by 'make engines'",
            remedy="run 'make engines'",
        )
    return fingerprint


def pair_fingerprint(recipe: Recipe, draft: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Return a hash of a pair: its engines and all settings of the recipe that reach a server."""
    settings: dict[str, Any] = {"serving": asdict(recipe.serving)}
    if recipe.runtime == "embedded":
        settings["kv_blocks"] = [recipe.draft.kv_cache.num_blocks, recipe.target.kv_cache.num_blocks]
    else:
        settings["engines"] = [asdict(recipe.draft.tensorrt_llm), asdict(recipe.target.tensorrt_llm)]
        settings["tensorrt_llm"] = asdict(recipe.tensorrt_llm)
    engines = [engine_fingerprint(draft), engine_fingerprint(target)]
    return sha256_json({"runtime": recipe.runtime, "engines": engines, **settings})


def _gpu_bytes(memory: MemoryPlan, models: Sequence[str], names: PairNames) -> dict[str, int]:
    """Return the memory that the rendered engines take of each GPU: weights, workspace and KV cache."""
    taken: dict[str, int] = {}
    for engine in (memory.draft, memory.target):
        if getattr(names, engine.role) not in models:
            continue
        num_bytes = engine.static_bytes + engine.kv_bytes_per_token * engine.max_tokens_in_paged_kv_cache
        for device in engine.devices:
            taken[str(device)] = taken.get(str(device), 0) + num_bytes
    return taken
