"""Pin what TensorRT-LLM's PyTorch backend serves of a pair, which replaces engines from version 1.3 on.

A bundle is the folder of ``build/llm_api.py`` and a ``bundle.json`` with everything that decides an answer:
version, container by digest, settings, and the SHA-256 of each file of both checkpoints. No server of ours
reads it: run ``draftproof engines --check`` before NVIDIA's server starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build.digests import file_digests
from build.llm_api import check_loadable, exported_quantization, write_llm_api
from build.recipe import Recipe
from pipelines.atomic_file import write_whole
from pipelines.errors import EngineLoadError

FORMAT = 1
_FILE = "bundle.json"


def build_bundle(recipe: Recipe, engines: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Write ``<engines>/<recipe>/llm_api/`` and pin it.

    Args:
        recipe: The pair, with ``tensorrt_llm.version`` 1.3 or later.
        engines: Folder of all recipes' engines.
        report: Called with one line per stage.

    Returns:
        ``bundle`` (its file) and the paths of ``write_llm_api``.

    Raises:
        RecipeError: The container has no digest, or ``quantization`` asks for what this backend does not do.
        CheckpointError: A checkpoint cannot be read.
    """
    section, roles = recipe.tensorrt_llm, {}
    check_loadable(recipe)
    for role, engine in (("draft", recipe.draft), ("target", recipe.target)):
        directory = engine.checkpoint_directory.resolve()
        report(f"{role}: reading {directory}")
        files = file_digests(path for path in directory.iterdir() if path.is_file())
        roles[role] = {"quantization": exported_quantization(directory), **_by_name(files)}
    paths = write_llm_api(recipe, section.version, engines)
    settings = _by_name(file_digests(paths.values()))
    pinned = {"format": FORMAT, "recipe": recipe.name, "version": section.version, "gpu": section.gpu}
    document = {**pinned, "container": section.container, **roles, "settings": settings}
    bundle = paths["model"].parent / _FILE
    write_whole(bundle, json.dumps(document, indent=1) + "\n")
    return {"bundle": str(bundle), **{name: str(path) for name, path in paths.items()}}


def check_bundle(folder: Path) -> dict[str, Any]:
    """Compare every file of a bundle with its digest.

    Args:
        folder: ``engines/<recipe>``.

    Returns:
        Files, under ``whole`` and ``damaged``, which may be missing.

    Raises:
        EngineLoadError: There is no bundle.
    """
    path = folder / "llm_api" / _FILE
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineLoadError(
            "there is no bundle to check", values=str(error), limit=str(path), remedy="run draftproof engines"
        ) from None
    result: dict[str, list[str]] = {"whole": [], "damaged": []}
    for part in ("draft", "target", "settings"):
        for name, sha256 in document[part]["files"].items():
            file = Path(document[part]["directory"]) / name
            intact = file.is_file() and file_digests([file])[file] == sha256
            result["whole" if intact else "damaged"].append(str(file))
    return result


def _by_name(digests: dict[Path, str]) -> dict[str, Any]:
    directory = next(iter(digests)).parent
    return {"directory": str(directory), "files": {path.name: digest for path, digest in digests.items()}}
