"""Copy the checkout into a folder, build a recipe's server there, and run it, beside others and unchanged."""

from __future__ import annotations

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
from pipelines.errors import VerificationError

_ROOT = Path(__file__).resolve().parents[1]
_LAST_LINES = 5  # of a failed program that an error quotes


@dataclass(frozen=True)
class RunningCopy:
    """A server of a copy.

    Attributes:
        ports: Ports that it listens on, one of them for OpenAI's API.
        start_s: Seconds from the start of the command until it was ready.
    """

    ports: Ports
    start_s: float


@dataclass(frozen=True)
class CheckoutCopy:
    """A copy of the working tree.

    Attributes:
        tree: Its root folder.
        recipe: Name of a recipe, or path of a YAML file.
    """

    tree: Path
    recipe: str

    @classmethod
    def make(cls, tree: Path, recipe: str, **serving: object) -> CheckoutCopy:
        """Copy the working tree, without what git ignores, into ``tree``.

        Args:
            tree: See the attribute.
            recipe: See the attribute.
            serving: Keys of the recipe's section ``serving`` that get other values.
        """
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout.split(b"\0")
        present = b"\0".join(path for path in listed if path and (_ROOT / os.fsdecode(path)).exists())
        packed = subprocess.run(
            ["tar", "-c", "-C", str(_ROOT), "--null", "-T", "-"],
            input=present,
            stdout=subprocess.PIPE,
            check=True,
        )
        if serving:
            recipe = str(_changed(recipe, tree.with_suffix(".yaml"), serving))
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
        (tree / "checkpoints").symlink_to(_ROOT / "checkpoints")  # which git ignores
        return cls(tree, recipe)

    def build(self) -> None:
        """Render the recipe's repository, with the engines of the checkout if it has them.

        Raises:
            VerificationError: The program failed.
        """
        name = run_directory(self.recipe).name
        for file in (_ROOT / "engines" / name).rglob("*"):
            if file.is_file() and file.name != ".lock":
                _link(file, self.tree / file.relative_to(_ROOT))
        self._run("build.repository", "--recipe", self.recipe)

    @contextmanager
    def running(self) -> Iterator[RunningCopy]:
        """Run a server on free ports; raises VerificationError if it does not start."""
        ports = Ports.free(with_openai=True)
        started_s = time.monotonic()
        try:
            self._run(
                *("pipelines.deploy", "serve", "--recipe", self.recipe, "--http-port", str(ports.http)),
                *("--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)),
                *("--openai-port", str(ports.openai)),
            )
            yield RunningCopy(ports, time.monotonic() - started_s)
        finally:
            self._program("pipelines.deploy", "stop", "--recipe", self.recipe)

    def _program(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=self.tree, capture_output=True, text=True, check=False)

    def _run(self, module: str, *arguments: str) -> None:
        done = self._program(module, *arguments)
        for line in done.stdout.splitlines():
            if line.startswith("warning: "):
                print(line, file=sys.stderr)
        if done.returncode:
            end = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise VerificationError(
                f"a program of the copied checkout failed: {module}: exit code {done.returncode}: {end}",
                "fix what its message names",
            )


def _changed(recipe: str, file: Path, serving: Mapping[str, object]) -> Path:
    """Write a recipe with other values of its section ``serving``."""
    own = Path(recipe) if recipe.endswith((".yaml", ".yml")) else RECIPES / f"{recipe}.yaml"
    document = yaml.safe_load(own.read_text(encoding="utf-8"))
    document["serving"].update(serving)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def _link(source: Path, destination: Path) -> None:
    """Make a hard link, or a copy on another file system."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        destination.hardlink_to(source)
    except OSError:
        shutil.copy2(source, destination)
