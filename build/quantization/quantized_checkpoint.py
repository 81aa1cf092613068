"""Find the checkpoint that an engine is compiled from, which may be a quantized one; without torch.

A quantized checkpoint is the directory ``engines/<recipe>/checkpoints/<role>-<fingerprint>/``. It contains
``config.json``, ``rank*.safetensors``, ``tokenizer.json`` and, written last, ``manifest.json``. For versions
of TensorRT-LLM that build no engines it is a Hugging Face directory (``build/quantization/export.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.files import is_complete
from build.quantization.calibration_text import text_path
from build.quantization.source import CheckpointSource, check_can_be_quantized, read_checkpoint_source
from build.recipe import EngineRecipe, Recipe
from build.tensorrt_llm.settings import TensorRtLlmEngine
from build.tensorrt_llm.versions import serves_checkpoints
from pipelines.errors import CheckpointError, RecipeError
from pipelines.manifest import read_manifest, sha256_file, sha256_json

FORMAT_VERSION = 1
MODELOPT_VERSION = "0.47.0"
CALIBRATED = ("fp8", "int8_sq", "int4_awq", "w4a8_awq")
_HERE = Path(__file__).resolve().parent
# Sources that influence the quantized weights. Other changes need no new calibration, which takes hours.
_DECIDING = ("calibration_text.py", "modelopt_worker.py")


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """A planned quantized checkpoint.

    Attributes:
        role: ``draft`` or ``target``.
        source: Checkpoint that is quantized.
        settings: Settings of the quantization, a JSON object.
        source_sha256: SHA-256 of each source file, by name.
        fingerprint: Hash of role, source and settings.
        directory: Directory that it is written to.
    """

    role: str
    source: CheckpointSource
    settings: Mapping[str, Any]
    source_sha256: Mapping[str, str]
    fingerprint: str
    directory: Path

    @property
    def is_made(self) -> bool:
        """Return whether it exists."""
        return is_complete(self.directory, self.fingerprint)


def checkpoint_for(recipe: Recipe, role: str, engines: Path) -> Path:
    """Return the directory that this role's engine is compiled from.

    Args:
        recipe: The pair; the result depends on its ``runtime``.
        role: ``draft`` or ``target``.
        engines: Folder that holds the engines.

    Returns:
        The recipe's own checkpoint if the runtime can use it unchanged, otherwise the quantized one.

    Raises:
        CheckpointError: The quantized checkpoint is missing, or its source has changed since.
        RecipeError: The recipe combines settings that exclude each other.
    """
    plan = plan_checkpoint(recipe, role, engines)
    if plan is None:
        engine: EngineRecipe = getattr(recipe, role)
        return engine.checkpoint_directory()
    if plan.is_made:
        return plan.directory
    others = [
        directory
        for directory in sorted(plan.directory.parent.glob(f"{role}-*"))
        if (read_manifest(directory) or {}).get("settings") == plan.settings
    ]
    raise CheckpointError(
        f"recipe {recipe.name}: the {role}'s quantized checkpoint does not exist: "
        + (
            f"{others[0].name} was made before {plan.source.directory} changed"
            if others
            else f"looked for {plan.directory}"
        ),
        f"run draftproof quantize --recipe {recipe.argument}",
    )


def plan_checkpoint(recipe: Recipe, role: str, engines: Path) -> QuantizedCheckpoint | None:
    """Return the quantized checkpoint that a role needs; None if the recipe's own can be used.

    Raises:
        CheckpointError, RecipeError: As for ``checkpoint_for``, except that it may be missing.
    """
    engine: EngineRecipe = getattr(recipe, role)
    exports = recipe.runtime == "tensorrt_llm" and serves_checkpoints(recipe.tensorrt_llm.version)
    if exports and engine.quantization in ("none", "checkpoint"):
        return None
    if exports and engine.quantization != "fp8":
        raise RecipeError(
            f"{role}.quantization={engine.quantization}, and the PyTorch backend loads checkpoints as they "
            "are, or as ModelOpt exports them in FP8",
            "choose none, fp8, or checkpoint for one that is quantized already",
        )
    source = read_checkpoint_source(engine.checkpoint_directory())
    sizes = engine.tensorrt_llm if recipe.runtime == "tensorrt_llm" else TensorRtLlmEngine()
    mapping = (1, 1) if exports else (sizes.tp_size, sizes.pp_size)
    if _can_use_unchanged(recipe, engine, source, mapping):
        return None
    _check(recipe, role, source)
    is_calibrated = engine.quantization in CALIBRATED
    settings: dict[str, Any] = {
        "quantization": engine.quantization,
        "kv_cache_dtype": sizes.kv_cache_dtype if is_calibrated else "model",
        "format": "hugging_face" if exports else "tensorrt_llm",
        "texts": {path.name: sha256_file(path) for path in source.texts} if exports else {},
        "tp_size": mapping[0],
        "pp_size": mapping[1],
        "pad_vocab_size_to": engine.pad_vocab_size_to,
        "calibration": _calibration(recipe) if is_calibrated else None,
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
    """Return size and modification time (nanoseconds) of each source file."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in source.files}


def _known_hashes(folder: Path, role: str, source: CheckpointSource) -> dict[str, str] | None:
    """Return the hashes of an earlier manifest if no file has changed; hashing 140 GB takes minutes."""
    stamps = file_stamps(source)
    for directory in folder.glob(f"{role}-*"):
        manifest = read_manifest(directory) or {}
        if manifest.get("source_stamps") == stamps and manifest.get("source") == str(source.directory):
            hashes: dict[str, str] = manifest["source_sha256"]
            return hashes
    return None


def _can_use_unchanged(
    recipe: Recipe, engine: EngineRecipe, source: CheckpointSource, mapping: tuple[int, int]
) -> bool:
    if recipe.runtime == "embedded" and engine.quantization not in CALIBRATED:
        return True  # build/networks reads and quantizes both formats
    if engine.quantization == "checkpoint":
        if source.is_hugging_face:
            raise RecipeError(
                f"recipe {recipe.name}: {source.directory} is a Hugging Face checkpoint, which cannot be "
                "compiled with quantization: checkpoint",
                "set quantization: none to convert it, or a quantization such as fp8 or int8_sq",
            )
        return True
    pads = engine.pad_vocab_size_to not in (None, source.config.get("vocab_size"))
    if source.is_hugging_face or engine.quantization in CALIBRATED or pads:
        return False
    is_marked = source.quant_algo == ("W8A16" if engine.quantization == "int8" else None)
    return is_marked and source.mapping == mapping


def _check(recipe: Recipe, role: str, source: CheckpointSource) -> None:
    engine: EngineRecipe = getattr(recipe, role)
    check_can_be_quantized(source)
    if recipe.runtime == "embedded" and source.config.get("model_type") == "qwen3":
        raise RecipeError(
            f"recipe {recipe.name}: the embedded runtime cannot read a quantized checkpoint of the {role}: "
            f"model_type=qwen3 in {source.directory / 'config.json'}",
            "set quantization: int8, int4 or none, which need no ModelOpt, or runtime: tensorrt_llm",
        )
    if engine.growth is not None and engine.quantization in CALIBRATED:
        raise RecipeError(
            f"recipe {recipe.name}: {role}.growth adds random weights, which calibration for "
            f"{engine.quantization} does not cover",
            "remove growth, or set quantization: int8",
        )
    vocab_size = source.config.get("vocab_size", 0)
    if engine.pad_vocab_size_to is not None and engine.pad_vocab_size_to < vocab_size:
        raise RecipeError(
            f"recipe {recipe.name}: {role}.pad_vocab_size_to={engine.pad_vocab_size_to} is below "
            f"vocab_size={vocab_size}",
            "raise it, or remove it",
        )


def _calibration(recipe: Recipe) -> dict[str, Any]:
    """Identify the text by its hash; the built-in one by name, as it differs between Python versions."""
    calibration = recipe.tensorrt_llm.calibration
    path = text_path(calibration)
    if path is not None and not path.is_file():
        raise CheckpointError(
            f"tensorrt_llm.calibration.text: {path} does not exist",
            "correct the path in the recipe, or remove it to use the built-in text",
        )
    return {
        "text": "built-in" if path is None else sha256_file(path),
        "num_samples": calibration.num_samples,
        "seq_len": calibration.seq_len,
    }
