"""Check a package: its signature if a key is demanded, then every file, before anything of it is used."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from build.built_pair import BuiltPair
from build.packaging.contents import CONTENTS, ENGINES, FORMAT, RECIPE, SIGNATURE, Contents
from build.packaging.signature import check_signature
from build.recipe import parse_recipe
from pipelines import configuration
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import EngineLoadError, PackageError
from pipelines.manifest import MANIFEST_NAME, read_checked, sha256_bytes, sha256_file

_MOST_NAMED = 5  # files in an error


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
    remedy = "make the package again with this version: 'make package'"
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
            limit="a directory that 'make package' wrote",
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
            remedy="make it with a key: make package SIGN=key.pem",
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
