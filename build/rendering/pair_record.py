"""Describe a pair of engines that models are rendered for (``pipelines/deploy/triton/pair_record.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from build.recipe import Recipe
from build.rendering.template_values import PairNames
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import RepositoryError
from pipelines.manifest import sha256_json


def pair_record(
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
    return PairRecord(
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
            limit="a hash, written by 'draftproof engines'",
            remedy="run 'draftproof engines'",
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
