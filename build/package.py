"""Write a recipe's pair as a package: ``python -m build.package --recipe demo``.

A package is a directory with the engines, the recipe, and ``package.json``, a list of digests that may be
signed (``build/signature.py``). It needs no checkout and no other file. ``draftproof serve --package
DIRECTORY`` serves it on any machine that has the code, and ``draftproof canary start --candidate DIRECTORY``
rolls it out. Before anything of it is used, the signature is checked if a key is demanded, then every file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from build.built_pair import BuiltPair, build_pair
from build.command_line import add_runtime, optional_path, print_line, recipe_parser, run_command
from build.files import Need, check_space
from build.recipe import REPOSITORY_ROOT, Recipe, Runtime, load_recipe, parse_recipe
from build.signature import check_signature, sign
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines import configuration
from pipelines.atomic_file import whole_directory
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import EngineLoadError, PackageError
from pipelines.manifest import (
    MANIFEST_NAME,
    checked_engine,
    engine_digest,
    read_checked,
    sha256_bytes,
    sha256_file,
)

CONTENTS = "package.json"
SIGNATURE = "package.sig"
"""Signature of ``package.json``, in base64; missing if the package is not signed."""

RECIPE = "recipe.yaml"
ENGINES = "engines"
FORMAT = 1

PACKAGES = REPOSITORY_ROOT / "dist" / "packages"

_MOST_NAMED = 5  # files in an error


@dataclass(frozen=True)
class PackagedEngine:
    """An engine of a package.

    Attributes:
        name: Name of its folder in ``engines/``.
        digest: Its ``engine_digest`` (``pipelines/manifest.py``).
    """

    name: str
    digest: str


@configuration.strict
@dataclass(frozen=True)
class Contents:
    """The content of a package.

    Attributes:
        recipe: Name of the recipe, and of the run directory of its server.
        runtime: ``embedded`` or ``tensorrt_llm``.
        draft: Engine of the draft.
        target: Engine of the target.
        memory: How the engines share their GPUs; None on the embedded runtime.
        files: SHA-256 of every other file of the package by its path, with ``/`` between folders.
    """

    recipe: str
    runtime: Runtime
    draft: PackagedEngine
    target: PackagedEngine
    memory: MemoryPlan | None
    files: dict[str, str]

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @property
    def paths_outside(self) -> list[str]:
        """Return the paths that do not name a file inside the package."""
        return [path for path in self.files if not _is_inside(path)]


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/") and "/".join(parts) == path


@dataclass(frozen=True)
class Package:
    """A package whose files have been checked.

    Attributes:
        directory: Absolute path of the package.
        sha256: Digest of its ``package.json``, and so of all its content.
        contents: What it holds.
        pair: The pair in it.
    """

    directory: Path
    sha256: str
    contents: Contents
    pair: BuiltPair

    def check_rendered(self, record: PairRecord) -> None:
        """Check that the engines of the package were rendered, as their manifests are read again for that.

        Raises:
            PackageError: The package has changed since it was checked.
        """
        found = record.draft_digest, record.target_digest
        packaged = self.contents.draft.digest, self.contents.target.digest
        if found != packaged:
            raise PackageError(
                "the package changed while it was read",
                values=f"engines {' and '.join(found)}",
                limit=f"engines {' and '.join(packaged)}",
                remedy="find out who writes to it, copy it again, and mount it read-only",
            )


def read_package(directory: Path, public_key: Path | None) -> Package:
    """Check a package and return it.

    Args:
        directory: Directory of the package.
        public_key: PEM file of the key that must have signed it; None to accept any package.

    Raises:
        PackageError: It is not a package of this version, a file has changed, is missing or was added, or the
            signature is missing or wrong.
        RecipeError: Its recipe is invalid.
    """
    directory = directory.resolve()
    content = _read_contents(directory)
    if public_key is not None:
        check_signature(content, _read_signature(directory, public_key), public_key, directory / SIGNATURE)
    remedy = "make the package again with this version: 'draftproof package'"
    contents = configuration.parse_versioned(
        Contents, content, directory / CONTENTS, FORMAT, PackageError, remedy
    )
    _check_files(directory, contents)
    engines = directory / ENGINES
    return Package(
        directory,
        sha256_bytes(content),
        contents,
        BuiltPair(
            parse_recipe(_read_recipe(directory, contents), directory / RECIPE),
            engines / contents.draft.name,
            engines / contents.target.name,
            contents.memory,
        ),
    )


def _read_contents(directory: Path) -> bytes:
    try:
        return (directory / CONTENTS).read_bytes()
    except OSError as error:
        raise PackageError(
            f"{directory} is not a package",
            values=f"{CONTENTS}: {error.strerror}",
            limit="a directory that 'draftproof package' wrote",
            remedy="name the directory that holds package.json, or copy the package again",
        ) from None


def _read_signature(directory: Path, public_key: Path) -> str:
    try:
        return (directory / SIGNATURE).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise PackageError(
            "the package is not signed",
            values=f"{directory / SIGNATURE}: {error.strerror}",
            limit=f"a signature that fits the public key {public_key}",
            remedy="make it with a key: draftproof package --sign key.pem",
        ) from None


def _read_recipe(directory: Path, contents: Contents) -> object:
    try:
        return yaml.safe_load(read_checked(directory / RECIPE, contents.files[RECIPE]))
    except (EngineLoadError, yaml.YAMLError) as error:
        raise _different(directory, [f"{RECIPE}: {' '.join(str(error).split())}"]) from None


def _check_files(directory: Path, contents: Contents) -> None:
    manifests = (f"{ENGINES}/{each.name}/{MANIFEST_NAME}" for each in (contents.draft, contents.target))
    needed = {RECIPE, *manifests}
    listed = contents.files.keys()
    differences = [f"{path}: not a path inside" for path in contents.paths_outside]
    differences += [f"{path}: not in {CONTENTS}" for path in sorted((needed | _present(directory)) - listed)]
    if not differences:  # else paths might lead anywhere
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda path: _content(directory / path), listed)
        pairs = zip(contents.files.items(), found, strict=True)
        differences = [f"{path}: {seen}" for (path, sha256), seen in pairs if seen != f"sha256 {sha256}"]
    if differences:
        raise _different(directory, differences)


def _present(directory: Path) -> set[str]:
    """Return the paths of everything in the package that is not a folder, without its two own files."""
    found = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(directory).as_posix() for path in found} - {CONTENTS, SIGNATURE}


def _content(path: Path) -> str:
    """Return the digest of a file, or what is there instead."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return "not a plain file"  # reading a pipe would never end
        return f"sha256 {sha256_file(path)}"
    except OSError as error:
        return error.strerror or repr(error)


def _different(directory: Path, differences: list[str]) -> PackageError:
    others = len(differences) - _MOST_NAMED
    named = "; ".join(differences[:_MOST_NAMED]) + (f"; {others} more" if others > 0 else "")
    return PackageError(
        f"{directory} is not the package that was made",
        values=named,
        limit=f"exactly the files that {CONTENTS} lists, with these digests",
        remedy="copy the package again; if the error persists, make it again",
    )


def write_package(pair: BuiltPair, destination: Path, private_key: Path | None = None) -> Contents:
    """Copy the engines of a pair, with its recipe, into a package.

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
    """Return the recipe with all its settings but its prompts, as ``parse_recipe`` reads it."""
    document = asdict(replace(recipe, prompts=None))
    del document["path"]
    return document


def _check_replaceable(destination: Path) -> None:
    if destination.exists() and not (destination / CONTENTS).is_file():
        raise PackageError(
            f"{destination} is not a package and would be replaced",
            values=f"no {CONTENTS} in it",
            limit="a path where there is nothing, or another package",
            remedy="name another path: draftproof package --output <directory>",
        )


def _package(options: argparse.Namespace) -> dict[str, Any]:
    pair = build_pair(load_recipe(options.recipe, options.runtime), print_line)
    directory = options.output or PACKAGES / pair.recipe.name
    contents = write_package(pair, directory, options.sign)
    if options.sign is None:
        print_line("not signed: whoever can write to the package can change it; --sign signs it")
    return {
        "package": str(directory.resolve()),
        "recipe": contents.recipe,
        "draft": contents.draft.digest,
        "target": contents.target.digest,
        "is_signed": options.sign is not None,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("draftproof package", "Write a recipe's pair as a package, engines first.")
    add_runtime(parser)
    parser.add_argument(
        "--output",
        type=optional_path,
        metavar="DIRECTORY",
        help="where to write the package (default: dist/packages/<recipe>)",
    )
    parser.add_argument(
        "--sign",
        type=optional_path,
        metavar="FILE",
        help="sign it with this Ed25519 private key, a PEM file (default: do not sign)",
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _package(options))


if __name__ == "__main__":
    sys.exit(main())
