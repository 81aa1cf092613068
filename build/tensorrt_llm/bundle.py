"""Pin what TensorRT-LLM's PyTorch backend serves of a pair, which replaces engines from version 1.3 on.

A bundle is the folder of ``llm_api.py`` and a ``bundle.json`` with everything that decides an answer:
version, container by digest, settings, and the SHA-256 of each file of both checkpoints. No server of ours
reads it: run ``draftproof engines --check`` before NVIDIA's server starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build.digests import file_digests
from build.hub.pinned import pin_recipe
from build.recipe import Recipe
from build.tensorrt_llm.llm_api import check_loadable, exported_quantization, llm_api_files, write_llm_api
from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.configuration import strict
from pipelines.errors import EngineLoadError
from pipelines.manifest import sha256_bytes, sha256_file, sha256_json

FORMAT = 1
_FILE = "bundle.json"


@dataclass(frozen=True)
class _Folder:
    directory: str
    files: dict[str, str]  # name -> SHA-256
    quantization: str | None = None  # of a checkpoint


@strict
@dataclass(frozen=True)
class _Bundle:
    recipe: str
    version: str
    gpu: str
    container: str
    draft: _Folder
    target: _Folder
    settings: _Folder


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
    recipe = check_loadable(recipe, engines)
    for role, engine in recipe.engines.items():
        directory = engine.checkpoint_directory().resolve()
        report(f"{role}: reading {directory}")
        files = file_digests(path for path in directory.iterdir() if path.is_file())
        roles[role] = _folder(files, exported_quantization(directory))
    paths = write_llm_api(recipe, section.version, engines)
    roles["settings"] = _folder(file_digests(paths.values()))
    pinned = _Bundle(recipe.name, section.version, section.gpu, section.container, **roles)
    bundle = paths["model"].parent / _FILE
    write_whole(bundle, json.dumps({"format": FORMAT, **asdict(pinned)}, indent=1) + "\n")
    return {"bundle": str(bundle), **{name: str(path) for name, path in paths.items()}}


def check_bundle(recipe: Recipe, engines: Path) -> dict[str, Any]:
    """Read every file of a bundle, and compare digests and names with those that are pinned.

    Args:
        recipe: The pair.
        engines: Folder of all recipes' engines.

    Returns:
        Files, under ``whole`` and ``damaged``: those are changed, missing or added.

    Raises:
        EngineLoadError: There is no bundle, or it pins something else than the recipe asks for.
        CheckpointError, RecipeError: The recipe cannot be rendered.
    """
    path, remedy = (
        engines / recipe.name / "llm_api" / _FILE,
        "run draftproof engines, and start the server again",
    )
    pinned = configuration.read_json(_Bundle, path, FORMAT, EngineLoadError, remedy)
    result: dict[str, list[str]] = {"whole": [], "damaged": []}
    for part in (pinned.draft, pinned.target, pinned.settings):
        directory = Path(part.directory)
        present = {each.name for each in directory.glob("*") if each.is_file()} - {_FILE}
        for name in sorted(present | part.files.keys()):
            intact = name in present and sha256_file(directory / name, from_disk=True) == part.files.get(name)
            result["whole" if intact else "damaged"].append(str(directory / name))
    if result["damaged"]:
        return result
    section, names = recipe.tensorrt_llm, ("version", "gpu", "container")
    rendered = llm_api_files(check_loadable(pin_recipe(recipe), engines), section.version, engines).values()
    texts = {file.name: sha256_bytes(text.encode()) for file, text in rendered}
    pins = {name: getattr(pinned, name) for name in names} | {"settings": sha256_json(pinned.settings.files)}
    asks = {name: getattr(section, name) for name in names} | {"settings": sha256_json(texts)}
    differing = [name for name in pins if pins[name] != asks[name]]
    if differing:
        raise EngineLoadError(
            f"{path} pins {', '.join(f'{name} {pins[name]}' for name in differing)}, and the recipe asks for "
            f"{', '.join(f'{name} {asks[name]}' for name in differing)}",
            remedy,
        )
    return result


def _folder(digests: dict[Path, str], quantization: str | None = None) -> _Folder:
    files = {path.name: digest for path, digest in digests.items()}
    return _Folder(str(next(iter(digests)).parent), files, quantization)
