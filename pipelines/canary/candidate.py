"""The two pairs of a rollout, as they stand beside each other in a rendered repository.

``build`` renders the new one in a process of its own and writes ``pair.json`` for both
(``build/pair_record.py``); here the file is read.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipelines.deploy.models import PAIR_FILE
from pipelines.deploy.triton_install import REPOSITORY_ROOT
from pipelines.errors import CanaryError, DraftproofError
from pipelines.whole_file import write_whole

STABLE_MODEL = "speculative"
_FORMAT = 1
_HASH_DIGITS = 8


@dataclass(frozen=True)
class Pair:
    """A pair of a repository; see ``build/pair_record.py`` for what no line here explains.

    Attributes:
        name: Of its recipe.
        fingerprint: Equal for pairs that answer alike and are as fast.
        models: Rendered for this pair alone, in the order in which they are to be loaded.
        socket: Where its loop answers, as processes of the server see it.
        loads_at_start: Whether a server loads them when it starts.
    """

    name: str
    fingerprint: str
    runtime: str
    speculative_model: str
    control_model: str
    models: tuple[str, ...]
    socket: str
    control_socket: str
    draft_engine_dir: str
    draft_fingerprint: str
    target_engine_dir: str
    target_fingerprint: str
    max_draft_len: int
    num_draft_tokens: str
    draft_length_file: str
    calibration_file: str
    num_kv_blocks: dict[str, int]
    gpu_bytes: dict[str, int]
    gpu_usable_bytes: int
    loads_at_start: bool

    @classmethod
    def read(cls, run_directory: Path, speculative_model: str = STABLE_MODEL) -> Pair:
        """The pair of a loop in ``<run_directory>/model_repository``.

        Raises:
            CanaryError: There is none, or another version rendered it.
        """
        path = run_directory / "model_repository" / speculative_model / PAIR_FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document.pop("format") != _FORMAT:
                raise ValueError("of another format")
            if set(document) != {field.name for field in fields(cls)}:
                raise ValueError("of another version")
            return cls(**{**document, "models": tuple(document["models"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CanaryError(
                "the repository does not say which pair a model belongs to",
                values=f"{path}: {error!r}",
                limit=f"format {_FORMAT}, as 'make repository' of this version writes it",
                remedy="run 'make repository', then 'make stop serve'",
            ) from None

    @property
    def hash(self) -> str:
        """What the names of its models end in, unless it is the recipe's own pair of the repository."""
        return self.fingerprint[:_HASH_DIGITS]

    def manifest(self, role: str) -> dict[str, Any]:
        """``manifest.json`` of the ``draft`` or ``target`` engine.

        Raises:
            CanaryError: It cannot be read.
        """
        path = Path(getattr(self, f"{role}_engine_dir")) / "manifest.json"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(manifest, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            raise CanaryError(
                "the manifest of an engine cannot be read",
                values=f"{path}: {error!r}",
                limit="an engine directory as 'make engines' leaves it",
                remedy="run 'make engines' for the recipe",
            ) from None
        return manifest


@dataclass(frozen=True)
class CandidatePair:
    """The pair on trial.

    Attributes:
        pair: Itself.
        stable: The one in service.
        run_directory: ``.run/<recipe of stable>``.
    """

    pair: Pair
    stable: Pair
    run_directory: Path

    @classmethod
    def read(
        cls, run_directory: Path, speculative_model: str, stable_model: str = STABLE_MODEL
    ) -> CandidatePair:
        """One that was rendered before.

        Raises:
            CanaryError: One of the pairs is not there.
        """
        pair, stable = (Pair.read(run_directory, model) for model in (speculative_model, stable_model))
        return cls(pair, stable, run_directory)

    @property
    def same_target(self) -> bool:
        """Whether both have the same target engine, so that their answers must be equal."""
        return self.pair.target_fingerprint == self.stable.target_fingerprint


def render_beside(recipe: str, run_directory: Path, runtime: str = "") -> CandidatePair:
    """Build a recipe's engines, have the pair measured, and render it beside the one in service.

    Args:
        recipe: Name, or path of a YAML file.
        run_directory: ``.run/<recipe of the pair in service>``.
        runtime: ``embedded`` or ``tensorrt_llm``; "" for what the recipe says.

    Raises:
        CanaryError: It could not be; the error of the build is quoted.
    """
    command = [sys.executable, "-m", "build.repository", "--recipe", recipe, "--runtime", runtime]
    command += ["--beside", str(run_directory)]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CanaryError(
            "the candidate could not be rendered beside the pair in service",
            values=said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}",
            limit=f"a recipe whose engines can be built here, and the repository of {run_directory}",
            remedy="mend what is named; nothing was loaded",
        )
    return CandidatePair.read(run_directory, json.loads(lines[-1])["speculative_model"])


def remove(run_directory: Path, pair: Pair) -> None:
    """Take a pair that is not loaded out of the repository; what is gone already is no error.

    Raises:
        CanaryError: The pair is in service.
    """
    repository = run_directory / "model_repository"
    if _loads_at_start(run_directory, pair):
        raise CanaryError(
            "a pair in service cannot be removed",
            values=f"{pair.speculative_model} in {repository}",
            limit="a pair that a server does not load at its start",
            remedy="roll out another pair, or serve another recipe",
        )
    with tempfile.TemporaryDirectory(prefix=".removed-", dir=run_directory) as scratch:
        for model in reversed(pair.models):  # the loop first: who asks it finds nobody at once
            if (repository / model).exists():
                (repository / model).rename(Path(scratch) / model)
            shutil.rmtree(Path(scratch) / model, ignore_errors=True)
    sockets = {pair.speculative_model: pair.socket, pair.control_model: pair.control_socket}
    for model in sockets.keys() & set(pair.models):  # a target that is shared answers on
        (REPOSITORY_ROOT / sockets[model]).unlink(missing_ok=True)


def load_at_start(run_directory: Path, pair: Pair, *, wanted: bool) -> None:
    """Say whether a server of the directory loads a pair's models when it starts.

    Raises:
        CanaryError: A model of the pair is not there.
    """
    for model in pair.models:
        path = run_directory / "model_repository" / model / PAIR_FILE
        if not path.parent.is_dir():
            raise CanaryError(
                "a model of the pair is not in the repository",
                values=str(path.parent),
                limit="all of the pair's models",
                remedy="render the pair again",
            )
        document = {"format": _FORMAT, **vars(pair), "loads_at_start": wanted}
        write_whole(path, json.dumps(document, indent=1) + "\n")


def _loads_at_start(run_directory: Path, pair: Pair) -> bool:
    """What the repository says now; a pair that is gone is loaded by nobody."""
    try:
        return Pair.read(run_directory, pair.speculative_model).loads_at_start
    except DraftproofError:
        return False
