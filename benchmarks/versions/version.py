"""Copy a version of this repository into a folder, build a recipe's server there, and run it.

Everything is done by the programs of that version, which are the same in every version: ``build.repository``
and ``pipelines.deploy``.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from build.recipe import RECIPES
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import run_directory
from pipelines.errors import InvalidRequestError, VerificationError

_ROOT = Path(__file__).resolve().parents[2]
ENGINES = _ROOT / "engines"
_LAST_LINES = 5  # of a failed program that an error quotes


@dataclass(frozen=True)
class Engines:
    """Engine directories of a version's pair."""

    draft: Path
    target: Path

    def are_same_as(self, other: Engines) -> bool:
        """Return whether both compute the same; fingerprints differ with the source text of the compiler."""
        return all(
            filecmp.cmp(own / name, others / name, shallow=False)
            for own, others in ((self.draft, other.draft), (self.target, other.target))
            for name in ("engine.bin", "engine.xml")
        )


@dataclass(frozen=True)
class RunningVersion:
    """A server of a version.

    Attributes:
        ports: Ports that it listens on, one of them for OpenAI's API.
        start_s: Seconds from the start of the command until it was ready.
    """

    ports: Ports
    start_s: float


@dataclass(frozen=True)
class Version:
    """A copy of a version.

    Attributes:
        name: What errors call it.
        tree: Its root folder.
        recipe: Name of a recipe, which that version has, or path of a YAML file.
    """

    name: str
    tree: Path
    recipe: str

    @classmethod
    def of_checkout(cls, tree: Path, recipe: str, **serving: object) -> Version:
        """Copy the working tree, without what git ignores, into ``tree``.

        Args:
            tree: See the attribute.
            recipe: See the attribute.
            serving: Keys of the recipe's section ``serving`` that get other values.
        """
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split(b"\0")
        present = b"\0".join(path for path in listed if path and (_ROOT / os.fsdecode(path)).exists())
        packed = subprocess.run(
            ["tar", "-c", "-C", str(_ROOT), "--null", "-T", "-"],
            input=present,
            stdout=subprocess.PIPE,
            check=True,
        )
        if serving:
            recipe = str(_changed(recipe, tree.with_suffix(".yaml"), serving))
        return cls._unpacked("the checkout", packed.stdout, tree, recipe)

    @classmethod
    def of_commit(cls, commit: str, tree: Path, recipe: str) -> Version:
        """Copy a commit into ``tree``; raises InvalidRequestError if this clone does not have it."""
        packed = _git("archive", resolve(commit))
        return cls._unpacked(f"commit {commit}", packed.stdout, tree, recipe)

    @classmethod
    def _unpacked(cls, name: str, packed: bytes, tree: Path, recipe: str) -> Version:
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed, check=True)
        (tree / "checkpoints").symlink_to(_ROOT / "checkpoints")  # which git ignores
        return cls(name, tree, recipe)

    def build(self, engines: Path) -> Engines:
        """Build the recipe's engines and render its repository.

        Args:
            engines: Folder whose engines are used if this version computes the same fingerprints.

        Raises:
            VerificationError: The version's own program failed.
        """
        name = run_directory(self.recipe).name
        for file in (engines / name).rglob("*"):
            if file.is_file() and file.name != ".lock":
                _link(file, self.tree / "engines" / file.relative_to(engines))
        built = json.loads(self._run("build.engines", "--recipe", self.recipe).splitlines()[-1])
        self._run("build.repository", "--recipe", self.recipe)
        return Engines(Path(built["draft"]), Path(built["target"]))

    @contextmanager
    def running(self) -> Iterator[RunningVersion]:
        """Run a server on free ports; raises VerificationError if it does not start."""
        ports = Ports.free(with_openai=True)
        started_s = time.monotonic()
        try:
            self._run(
                *("pipelines.deploy", "serve", "--recipe", self.recipe, "--http-port", str(ports.http)),
                *("--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)),
                *("--openai-port", str(ports.openai)),
            )
            yield RunningVersion(ports, time.monotonic() - started_s)
        finally:
            self._program("pipelines.deploy", "stop", "--recipe", self.recipe)

    def _program(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=self.tree, capture_output=True, text=True, check=False)

    def _run(self, module: str, *arguments: str) -> str:
        done = self._program(module, *arguments)
        for line in done.stdout.splitlines():
            if line.startswith("warning: "):
                print(f"{self.name}: {line}", file=sys.stderr)
        if done.returncode:
            end = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise VerificationError(
                f"a program of {self.name} failed with the packages of {sys.executable}: {module}: exit code "
                f"{done.returncode}: {end}",
                "fix the error, or compare with a commit that needs the same packages",
            )
        return done.stdout


def resolve(commit: str) -> str:
    """Return the full hash of a commit; raises InvalidRequestError if this clone does not have it."""
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        raise InvalidRequestError(
            f"--before {commit}: this clone has no such commit",
            "choose one from 'git log', or fetch it first",
        )
    return found.stdout.decode().strip()


def _changed(recipe: str, file: Path, serving: Mapping[str, object]) -> Path:
    """Write a recipe with other values of its section ``serving``."""
    own = Path(recipe) if recipe.endswith((".yaml", ".yml")) else RECIPES / f"{recipe}.yaml"
    document = yaml.safe_load(own.read_text(encoding="utf-8"))
    document["serving"].update(serving)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=False)


def _link(source: Path, destination: Path) -> None:
    """Make a hard link, or a copy on another file system."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        destination.hardlink_to(source)
    except OSError:
        shutil.copy2(source, destination)
