"""Write a recipe's pair as a package: ``python -m build.package --recipe demo``.

A package is a directory with the engines, the recipe, and ``SHA256SUMS``, which lists every other file as
``sha256sum`` does. ``openssl`` signs that list (docs/how-to/deploy.md). It needs no checkout and no other
file. ``draftproof serve --package DIRECTORY`` serves it on any machine that has the code, and ``draftproof
canary start --candidate DIRECTORY`` rolls it out. Before anything of it is used, the signature is checked if
a key is demanded, then every file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from build.recipe import Recipe, load_recipe, parse_recipe
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
from pipelines.places import DATA

LIST = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
"""Ed25519 signature of the list, 64 bytes, as ``openssl pkeyutl -sign`` writes it."""

RECIPE = "recipe.yaml"
MEMORY = "memory.json"
"""How the engines share their GPUs; missing on the embedded runtime."""

DRAFT, TARGET = "engines/draft", "engines/target"
PACKAGES = DATA / "dist" / "packages"

_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<path>[^\\]+)")
_MOST_NAMED = 5  # files in an error


@dataclass(frozen=True)
class Package:
    """A package whose files have been checked.

    Attributes:
        directory: Absolute path of the package.
        sha256: Digest of its list, and so of all its content.
        pair: The pair in it.
        digests: ``engine_digest`` of draft and target.
    """

    directory: Path
    sha256: str
    pair: BuiltPair
    digests: tuple[str, str]

    def check_rendered(self, record: PairRecord) -> None:
        """Check that the engines of the package were rendered, as their manifests are read again for that.

        Raises:
            PackageError: The package has changed since it was checked.
        """
        found = record.draft_digest, record.target_digest
        if found != self.digests:
            raise PackageError(
                f"the package changed while it was read: engines {' and '.join(found)}, not "
                f"{' and '.join(self.digests)}",
                "find out who writes to it, copy it again, and mount it read-only",
            )


def read_package(directory: Path, public_key: Path | None) -> Package:
    """Check a package and return it.

    Args:
        directory: Directory of the package.
        public_key: PEM file of the Ed25519 key that must have signed it; None to accept any package.

    Raises:
        PackageError: It is not a package, a file has changed, is missing or was added, or the signature is
            missing or wrong.
        RecipeError: Its recipe is invalid.
    """
    directory = directory.resolve()
    content = _read_list(directory)
    if public_key is not None:
        _check_signature(content, directory / SIGNATURE, public_key)
    listed = _parse_list(content, directory)
    _check_files(directory, listed)

    def read(name: str) -> bytes:
        return read_checked(directory / name, listed[name])

    try:
        recipe = parse_recipe(yaml.safe_load(read(RECIPE)), directory / RECIPE)
        has_draft = recipe.draft is not None
        draft, target = (
            engine_digest(json.loads(read(f"{engine}/{MANIFEST_NAME}"))) if is_there else ""
            for engine, is_there in ((DRAFT, has_draft), (TARGET, True))
        )
        plan = json.loads(read(MEMORY)) if MEMORY in listed else None
    except (EngineLoadError, yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _different(directory, [" ".join(str(error).split())]) from None
    remedy = "make the package again with this version: 'draftproof package'"
    memory = None if plan is None else configuration.parse(MemoryPlan, plan, PackageError, remedy)
    pair = BuiltPair(recipe, directory / DRAFT if has_draft else None, directory / TARGET, memory)
    return Package(directory, sha256_bytes(content), pair, (draft, target))


def _read_list(directory: Path) -> bytes:
    try:
        return (directory / LIST).read_bytes()
    except OSError as error:
        raise PackageError(
            f"{directory} is not a package: {LIST}: {error.strerror}",
            f"name the directory that holds {LIST}, or copy the package again",
        ) from None


def _parse_list(content: bytes, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each listed file by its path, with ``/`` between folders."""
    found = {}
    for number, line in enumerate(content.decode("utf-8", "replace").removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise _different(directory, [f"{LIST}, line {number}: {line!r:.80}"])
        found[match["path"]] = match["sha256"]
    return found


def _check_signature(content: bytes, place: Path, public_key: Path) -> None:
    # Imported here: most servers demand no key, and start sooner without it.
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key: Any = load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        key = " ".join(str(error).split())
    if not isinstance(key, Ed25519PublicKey):
        raise PackageError(
            f"{public_key} is no Ed25519 public key in a PEM file: {key}",
            "write it: openssl pkey -in key.pem -pubout -out key.pub",
        )
    try:
        key.verify(place.read_bytes(), content)
    except OSError as error:
        raise PackageError(
            f"the package is not signed: {place}: {error.strerror}", _sign(place.parent)
        ) from None
    except InvalidSignature:
        raise PackageError(
            f"the package was signed with another key, or has changed since: {place} does not fit "
            f"{public_key}",
            "use a package from whoever has the private key, or the public key of whoever signed it",
        ) from None


def _sign(package: Path) -> str:
    where = f"-in {package / LIST} -out {package / SIGNATURE}"
    return f"sign it: openssl pkeyutl -sign -rawin -inkey key.pem {where}"


def _check_files(directory: Path, listed: dict[str, str]) -> None:
    needed = {RECIPE, f"{TARGET}/{MANIFEST_NAME}"}
    differences = [f"{path}: not a path inside" for path in listed if not _is_inside(path)]
    differences += [
        f"{path}: not in {LIST}" for path in sorted((needed | _present(directory)) - listed.keys())
    ]
    if not differences:  # else paths might lead anywhere
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda path: _content(directory / path), listed)
        pairs = zip(listed.items(), found, strict=True)
        differences = [f"{path}: {seen}" for (path, sha256), seen in pairs if seen != f"sha256 {sha256}"]
    if differences:
        raise _different(directory, differences)


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/") and "/".join(parts) == path


def _present(directory: Path) -> set[str]:
    """Return the paths of everything in the package that is not a folder, without list and signature."""
    found = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(directory).as_posix() for path in found} - {LIST, SIGNATURE}


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
        f"{directory} is not the package that was made, as {LIST} lists it: {named}",
        "copy the package again; if the error persists, make it again",
    )


def write_package(pair: BuiltPair, destination: Path) -> tuple[str, str]:
    """Copy the engines of a pair, with its recipe, into a package.

    Args:
        pair: The pair, which must be built.
        destination: Directory of the package; a package that is there is replaced.

    Returns:
        ``engine_digest`` of draft, "" without one, and target.

    Raises:
        EngineLoadError: A file of an engine is missing or has changed since the build.
        PackageError: Something else is at the destination; nothing was written.
        RecipeError: The disk does not hold the package.
    """
    directories = {DRAFT: pair.draft_engine, TARGET: pair.target_engine}
    engines = {folder: checked_engine(engine) for folder, engine in directories.items() if engine is not None}
    if destination.exists() and not (destination / LIST).is_file():
        raise PackageError(
            f"{destination} has no {LIST}, so it is not a package and would be replaced",
            "name another path: draftproof package --output <directory>",
        )
    size = sum(path.stat().st_size for engine in engines.values() for path in engine.directory.iterdir())
    check_space([Need("the package", destination, size)])
    with whole_directory(destination) as staging:
        for folder, engine in engines.items():
            shutil.copytree(engine.directory, staging / folder)
        if pair.memory is not None:
            (staging / MEMORY).write_text(json.dumps(asdict(pair.memory)) + "\n", encoding="utf-8")
        document = yaml.safe_dump(recipe_document(pair.recipe), sort_keys=False)
        (staging / RECIPE).write_text(document, encoding="utf-8")
        paths = sorted(path for path in staging.rglob("*") if path.is_file())
        lines = [f"{sha256_file(path)}  {path.relative_to(staging).as_posix()}\n" for path in paths]
        (staging / LIST).write_text("".join(lines), encoding="utf-8")
    draft = engine_digest(engines[DRAFT].manifest) if DRAFT in engines else ""
    return draft, engine_digest(engines[TARGET].manifest)


def recipe_document(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe with all its settings but its prompts, as ``parse_recipe`` reads it."""
    document = asdict(replace(recipe, prompts=None))
    del document["path"]
    return document


def _package(options: argparse.Namespace) -> dict[str, Any]:
    pair = build_pair(load_recipe(options.recipe, options.runtime), print_line)
    directory = (options.output or PACKAGES / pair.recipe.name).resolve()
    draft, target = write_package(pair, directory)
    print_line(f"not signed: whoever can write to the package can change it; {_sign(directory)}")
    return {"package": str(directory), "recipe": pair.recipe.name, "draft": draft, "target": target}


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
    options = parser.parse_args(arguments)
    return run_command(lambda: _package(options))


if __name__ == "__main__":
    sys.exit(main())
