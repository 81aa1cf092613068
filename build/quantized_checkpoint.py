"""Which checkpoint an engine is compiled from, and where a quantized one lies; without torch.

A quantized checkpoint is ``engines/<recipe>/checkpoints/<role>-<fingerprint>/``: ``config.json``,
``rank*.safetensors``, ``tokenizer.json`` and, written last, ``manifest.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.manifest import is_complete, read_manifest, sha256_file, sha256_json
from build.quantization.calibration_text import text_path
from build.quantization.source import CheckpointSource, check_can_be_quantized, read_checkpoint_source
from build.recipe import EngineRecipe, Recipe
from pipelines.errors import CheckpointError, RecipeError

FORMAT_VERSION = 1
MODELOPT_VERSION = "0.47.0"
CALIBRATED = ("fp8", "int8_sq", "int4_awq", "w4a8_awq")
_FP8_KV_NEEDS = ("fp8", "w4a8_awq")
_HERE = Path(__file__).resolve().parent / "quantization"
# What decides numbers; a change of anything else is no reason to calibrate for hours again.
_DECIDING = ("calibration_text.py", "modelopt_worker.py")


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """A quantized checkpoint that shall exist.

    Attributes:
        role: ``draft`` or ``target``.
        source: What it is made from.
        settings: How it is made; JSON.
        source_sha256: By file name.
        fingerprint: Hash of role, source and settings.
        directory: Where it is or will be.
    """

    role: str
    source: CheckpointSource
    settings: Mapping[str, Any]
    source_sha256: Mapping[str, str]
    fingerprint: str
    directory: Path

    @property
    def is_made(self) -> bool:
        """Whether the directory holds it already."""
        return is_complete(self.directory, self.fingerprint)


def checkpoint_for(recipe: Recipe, role: str, engines: Path) -> Path:
    """The directory that this role's engine is compiled from.

    Args:
        recipe: The pair; its ``runtime`` counts.
        role: ``draft`` or ``target``.
        engines: Folder of the engines.

    Returns:
        The recipe's own checkpoint where the runtime can use it as it is, else the quantized one.

    Raises:
        CheckpointError: It is not there, or its source changed since it was made.
        RecipeError: The recipe asks for what does not go together.
    """
    plan = plan_checkpoint(recipe, role, engines)
    if plan is None:
        engine: EngineRecipe = getattr(recipe, role)
        return engine.checkpoint_directory
    if plan.is_made:
        return plan.directory
    others = [
        directory
        for directory in sorted(plan.directory.parent.glob(f"{role}-*"))
        if (read_manifest(directory) or {}).get("settings") == plan.settings
    ]
    raise CheckpointError(
        f"recipe {recipe.name}: the {role}'s quantized checkpoint is not there",
        values=f"{others[0].name} was made before {plan.source.directory} changed"
        if others
        else f"looked for {plan.directory}",
        limit=f"quantization: {plan.settings['quantization']} is made from {plan.source.directory}",
        remedy=f"run make quantize RECIPE={recipe.name}",
    )


def plan_checkpoint(recipe: Recipe, role: str, engines: Path) -> QuantizedCheckpoint | None:
    """What would be made for a role; None if the recipe's own checkpoint serves.

    Raises:
        CheckpointError, RecipeError: As ``checkpoint_for``, without looking whether it is there.
    """
    engine: EngineRecipe = getattr(recipe, role)
    source = read_checkpoint_source(engine.checkpoint_directory)
    sizes = engine.tensorrt_llm
    mapping = (sizes.tp_size, sizes.pp_size) if recipe.runtime == "tensorrt_llm" else (1, 1)
    if _serves_as_it_is(recipe, engine, source, mapping):
        return None
    _check(recipe, role, source, mapping)
    settings: dict[str, Any] = {
        "quantization": engine.quantization,
        "kv_cache_dtype": sizes.kv_cache_dtype if engine.quantization in CALIBRATED else "model",
        "tp_size": mapping[0],
        "pp_size": mapping[1],
        "pad_vocab_size_to": engine.pad_vocab_size_to,
        "calibration": _calibration(recipe) if engine.quantization in CALIBRATED else None,
        "modelopt_version": MODELOPT_VERSION,
        "format_version": FORMAT_VERSION,
        "code_sha256": {name: sha256_file(_HERE / name) for name in _DECIDING},
    }
    folder = engines / recipe.name / "checkpoints"
    hashes = _known_hashes(folder, role, source) or {path.name: sha256_file(path) for path in source.files}
    fingerprint = sha256_json({"role": role, "source": hashes, "settings": settings})
    directory = folder / f"{role}-{fingerprint[:16]}"
    return QuantizedCheckpoint(role, source, settings, hashes, fingerprint, directory)


def file_stamps(source: CheckpointSource) -> dict[str, list[int]]:
    """Size and time of change, in nanoseconds, of each file of a source."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in source.files}


def _known_hashes(folder: Path, role: str, source: CheckpointSource) -> dict[str, str] | None:
    """Hashes of a source from a manifest whose stamps it still has: hashing 140 GB takes minutes."""
    stamps = file_stamps(source)
    for directory in folder.glob(f"{role}-*"):
        manifest = read_manifest(directory) or {}
        if manifest.get("source_stamps") == stamps and manifest.get("source") == str(source.directory):
            hashes: dict[str, str] = manifest["source_sha256"]
            return hashes
    return None


def _serves_as_it_is(
    recipe: Recipe, engine: EngineRecipe, source: CheckpointSource, mapping: tuple[int, int]
) -> bool:
    if engine.quantization == "checkpoint":
        if source.is_hugging_face:
            raise RecipeError(
                f"recipe {recipe.name}: a Hugging Face checkpoint cannot be compiled as it is",
                values=f"quantization: checkpoint, {source.directory}",
                limit="engines are compiled from TensorRT-LLM's form",
                remedy="say quantization: none to have it converted, or fp8, int8_sq and the like",
            )
        return True
    pads = engine.pad_vocab_size_to not in (None, source.config.get("vocab_size"))
    if source.is_hugging_face or engine.quantization in CALIBRATED or pads:
        return False
    if recipe.runtime == "embedded":
        return True  # build/weight_only.py rounds, or multiplies out
    is_marked = source.quant_algo == ("W8A16" if engine.quantization == "int8" else None)
    return is_marked and source.mapping == mapping


def _check(recipe: Recipe, role: str, source: CheckpointSource, mapping: tuple[int, int]) -> None:
    engine: EngineRecipe = getattr(recipe, role)
    check_can_be_quantized(source)
    if engine.growth is not None and engine.quantization in CALIBRATED:
        raise RecipeError(
            f"recipe {recipe.name}: {role}.growth and a calibrated quantization do not go together",
            values=f"quantization: {engine.quantization}",
            limit="growth adds weights that no calibration has seen",
            remedy="leave growth out, or say quantization: int8",
        )
    kv_cache_dtype = engine.tensorrt_llm.kv_cache_dtype
    if kv_cache_dtype != "model" and (kv_cache_dtype != "fp8" or engine.quantization not in _FP8_KV_NEEDS):
        raise RecipeError(
            f"recipe {recipe.name}: {role}.tensorrt_llm.kv_cache_dtype does not go with the weights",
            values=f"kv_cache_dtype: {kv_cache_dtype}, quantization: {engine.quantization}",
            limit=f"model, or fp8 with quantization {' or '.join(_FP8_KV_NEEDS)}",
            remedy="say kv_cache_dtype: model, or choose one of these quantizations",
        )
    vocab_size = source.config.get("vocab_size", 0)
    if engine.pad_vocab_size_to is not None and engine.pad_vocab_size_to < vocab_size:
        raise RecipeError(
            f"recipe {recipe.name}: {role}.pad_vocab_size_to is too small",
            values=f"pad_vocab_size_to={engine.pad_vocab_size_to}",
            limit=f"at least vocab_size={vocab_size}",
            remedy="raise it, or leave it out",
        )
    heads = int(source.config.get("num_attention_heads", 0))
    counts = {
        "num_attention_heads": (heads, mapping[0], "tp_size"),
        "num_key_value_heads": (source.config.get("num_key_value_heads") or heads, mapping[0], "tp_size"),
        "num_hidden_layers": (source.config.get("num_hidden_layers", 0), mapping[1], "pp_size"),
    }
    for key, (count, parts, name) in counts.items():
        if count % parts:
            raise RecipeError(
                f"recipe {recipe.name}: the {role} cannot be split like this",
                values=f"{key}={count}, {role}.tensorrt_llm.{name}={parts}",
                limit=f"{key} must be a multiple of {name}",
                remedy=f"lower {name}",
            )


def _calibration(recipe: Recipe) -> dict[str, Any]:
    """The text by content; the built-in one by name, because every Python has another edition of it."""
    calibration = recipe.tensorrt_llm.calibration
    path = text_path(calibration)
    if path is not None and not path.is_file():
        raise CheckpointError(
            f"the calibration text {path} does not exist",
            values=f"tensorrt_llm.calibration.text: {calibration.text}",
            limit="a text file in UTF-8",
            remedy="correct the path in the recipe, or leave it out for the built-in text",
        )
    return {
        "text": "built-in" if path is None else sha256_file(path),
        "num_samples": calibration.num_samples,
        "seq_len": calibration.seq_len,
    }
