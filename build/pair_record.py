"""``pair.json``: which pair of engines a model of a rendered repository belongs to.

It lies in the model's folder, comes and goes with it, and is what a rollout knows of both pairs
(``pipelines/canary/candidate.py``). ``pipelines/deploy/models.py`` reads whether a server loads the model
at its start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build.manifest import sha256_json
from build.memory_plan import MemoryPlan
from build.recipe import Recipe
from build.template_values import PairNames
from build.whole import write_whole
from pipelines.errors import RepositoryError

PAIR_FILE = "pair.json"
FORMAT = 1
SHORT_HASH = 8
"""Hexadecimal digits that tell the models of pairs apart: the path of a socket has at most 107 bytes."""


@dataclass(frozen=True)
class PairRecord:
    """A pair in a repository.

    Attributes:
        name: Of the recipe.
        fingerprint: Of everything that decides how the pair answers and how fast, hexadecimal.
        runtime: ``embedded`` or ``tensorrt_llm``.
        speculative_model: Its loop.
        control_model: Its target alone; another pair's where they share the target.
        models: Those that were rendered for this pair alone, in the order in which they are to be loaded.
        socket: Of ``speculative_model``, as its process sees it.
        control_socket: Of ``control_model``.
        draft_engine_dir: Engine directory.
        draft_fingerprint: Of that engine.
        target_engine_dir: Engine directory.
        target_fingerprint: Of that engine.
        max_draft_len: Most draft tokens of a round.
        num_draft_tokens: Of a round, ``adaptive`` or a number.
        draft_length_file: What overrides ``num_draft_tokens`` while the server runs; both pairs' own.
        calibration_file: Measurements of the pair; "" on TensorRT-LLM.
        num_kv_blocks: By role, on the embedded runtime.
        gpu_bytes: By number of the GPU, what the pair takes of it, on TensorRT-LLM; an estimate.
        gpu_usable_bytes: What a GPU has for all pairs together.
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
    target_engine_dir: str
    target_fingerprint: str
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
        """Describe a pair that is rendered with these values.

        Args:
            recipe: Its limits.
            draft: Manifest of the engine.
            target: Likewise.
            values: As the templates got them.
            names: Of the models that the pair needs.
            models: Rendered for it.
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
            target_engine_dir=values["target_engine_dir"],
            target_fingerprint=engine_fingerprint(target),
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
        """As JSON has it."""
        return {"format": FORMAT, **asdict(self), "models": list(self.models)}

    def write(self, folder: Path) -> None:
        """Write the file into a model's folder, as a whole."""
        write_whole(folder / PAIR_FILE, json.dumps(self.document(), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> PairRecord:
        """Read the file of a model's folder.

        Raises:
            RepositoryError: It is missing, or this version did not write it.
        """
        path = folder / PAIR_FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document.pop("format") != FORMAT:
                raise ValueError("of another format")
            return cls(**{**document, "models": tuple(document["models"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RepositoryError(
                "the record of a model's pair cannot be used",
                values=f"{path}: {error!r}",
                limit=f"format {FORMAT}, as 'make repository' of this version writes it",
                remedy="run 'make repository', then 'make stop serve'; if it is named again, remove the "
                "model's folder",
            ) from None


def engine_fingerprint(manifest: Mapping[str, Any]) -> str:
    """What an engine was made from; equal for equal engines of two recipes.

    Raises:
        RepositoryError: The manifest does not say.
    """
    fingerprint = manifest.get("fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint:
        raise RepositoryError(
            "an engine's manifest does not say what it was made from",
            values=f"fingerprint={fingerprint!r}",
            limit="a hash, as 'make engines' writes it",
            remedy="run 'make engines'",
        )
    return fingerprint


def pair_fingerprint(recipe: Recipe, draft: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Hash of a pair: its engines, and everything of the recipe that a server is told."""
    told: dict[str, Any] = {"serving": asdict(recipe.serving)}
    if recipe.runtime == "embedded":
        told["kv_blocks"] = [recipe.draft.kv_cache.num_blocks, recipe.target.kv_cache.num_blocks]
    else:
        told["engines"] = [asdict(recipe.draft.tensorrt_llm), asdict(recipe.target.tensorrt_llm)]
        told["tensorrt_llm"] = asdict(recipe.tensorrt_llm)
    engines = [engine_fingerprint(draft), engine_fingerprint(target)]
    return sha256_json({"runtime": recipe.runtime, "engines": engines, **told})


def _gpu_bytes(memory: MemoryPlan, models: Sequence[str], names: PairNames) -> dict[str, int]:
    """What the engines among the rendered models take of each GPU: weights, workspace, cache."""
    taken: dict[str, int] = {}
    for engine in (memory.draft, memory.target):
        if getattr(names, engine.role) not in models:
            continue
        num_bytes = engine.static_bytes + engine.kv_bytes_per_token * engine.max_tokens_in_paged_kv_cache
        for device in engine.devices:
            taken[str(device)] = taken.get(str(device), 0) + num_bytes
    return taken
