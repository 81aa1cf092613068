"""Write a pair as a package: a directory that needs no checkout and no other file, wherever it is copied."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from build.built_pair import BuiltPair
from build.files.free_space import Need, check_space
from build.packaging.contents import CONTENTS, ENGINES, RECIPE, SIGNATURE, Contents, PackagedEngine
from build.packaging.signature import sign
from build.recipe import Recipe
from build.rendering.template_values import calibration_file
from pipelines.atomic_file import whole_directory
from pipelines.errors import PackageError
from pipelines.manifest import checked_engine, engine_digest, sha256_file


def write_package(pair: BuiltPair, destination: Path, private_key: Path | None = None) -> Contents:
    """Copy the engines of a pair, with its recipe and measurement, into a package.

    Args:
        pair: The pair, which must be built.
        destination: Directory of the package; a package that is there is replaced.
        private_key: PEM file of an Ed25519 key that signs it; None for an unsigned package.

    Raises:
        EngineLoadError: A file of an engine is missing or has changed since the build.
        PackageError: Something else is at the destination, or the key cannot be used; nothing was written.
        RecipeError: The disk does not hold the package.
    """
    draft, target = engines = checked_engine(pair.draft_engine), checked_engine(pair.target_engine)
    if private_key is not None:
        sign(b"", private_key)  # a key that cannot be used is refused before gigabytes are copied
    _check_replaceable(destination)
    size = sum(path.stat().st_size for engine in engines for path in engine.directory.iterdir())
    check_space([Need("the package", destination, size)])
    with whole_directory(destination) as staging:
        for engine in engines:
            shutil.copytree(engine.directory, staging / ENGINES / engine.directory.name)
        if pair.recipe.runtime == "embedded":
            calibration = calibration_file(pair.draft_engine, pair.target_engine)
            shutil.copyfile(calibration, staging / ENGINES / calibration.name)
        document = yaml.safe_dump(recipe_document(pair.recipe), sort_keys=False)
        (staging / RECIPE).write_text(document, encoding="utf-8")
        paths = sorted(path for path in staging.rglob("*") if path.is_file())
        contents = Contents(
            pair.recipe.name,
            pair.recipe.runtime,
            PackagedEngine(draft.directory.name, engine_digest(draft.manifest)),
            PackagedEngine(target.directory.name, engine_digest(target.manifest)),
            memory=pair.memory,
            files={path.relative_to(staging).as_posix(): sha256_file(path) for path in paths},
        )
        text = contents.to_json()
        (staging / CONTENTS).write_text(text, encoding="utf-8")
        if private_key is not None:
            signature = sign(text.encode(), private_key)
            (staging / SIGNATURE).write_text(signature + "\n", encoding="ascii")
    return contents


def recipe_document(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe with all its settings, as ``parse_recipe`` reads it.

    Its prompts stay behind: they served the measurement, which is in the package.
    """
    document = asdict(replace(recipe, prompts=None))
    del document["path"]
    return document


def _check_replaceable(destination: Path) -> None:
    if destination.exists() and not (destination / CONTENTS).is_file():
        raise PackageError(
            f"{destination} is not a package and would be replaced",
            values=f"no {CONTENTS} in it",
            limit="a path where there is nothing, or another package",
            remedy="name another path: make package OUTPUT=<directory>",
        )
