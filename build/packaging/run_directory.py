"""The run directory of a server whose pair comes from a package."""

from __future__ import annotations

import json
from pathlib import Path

from build.recipe import REPOSITORY_ROOT
from build.rendering.launch import PackageOrigin
from build.rendering.template_values import PairNames
from pipelines.atomic_file import remove_directory
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import RepositoryError
from pipelines.socket_path import is_listening


def check_name(run_directory: Path, recipe: str) -> None:
    """Check that a run directory has the name of its recipe, by which other commands find it.

    Raises:
        RepositoryError: It has another name.
    """
    if run_directory.name != recipe:
        raise RepositoryError(
            "the run directory has another name than the recipe",
            values=f"{run_directory}; recipe {recipe}",
            limit="the last part of the path is the recipe's name",
            remedy=f"use {run_directory.parent / recipe}, or the package or recipe {run_directory.name}",
        )


def begin_anew(run_directory: Path, package: PackageOrigin) -> None:
    """Empty a run directory that was rendered for another package, or for the checkout.

    Pairs that were promoted there go with the table of arms that names them: a server of this package begins
    with the package's own pair. Whether it is another package is told by ``launch.json``, which is written
    last, so that an interrupted rendering begins anew as well.

    Args:
        run_directory: Run directory; it need not exist.
        package: The package that is going to be rendered.

    Raises:
        RepositoryError: A server uses the directory.
    """
    repository = run_directory / "model_repository"
    if _rendered_from(run_directory) == package.sha256:
        return
    try:
        socket = REPOSITORY_ROOT / PairRecord.read(repository / PairNames().speculative).socket
    except RepositoryError:  # there is none, or one of another version
        socket = None
    if socket is not None and is_listening(socket):
        raise RepositoryError(
            "a server uses this run directory with another pair",
            values=str(run_directory),
            limit=f"only a server of {package.directory} may run there",
            remedy="stop it with 'make stop' before another package is served",
        )
    (run_directory / "arms.json").unlink(missing_ok=True)
    remove_directory(repository)


def _rendered_from(run_directory: Path) -> str | None:
    """Return the digest of the package that a directory was rendered from; None if of none."""
    try:
        launch = json.loads((run_directory / "launch.json").read_text(encoding="utf-8"))
        return str(launch["package"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
