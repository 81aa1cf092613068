"""Check that the disks hold what is going to be written, before anything is."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pipelines.errors import RecipeError

_GB = 1e9


class Need(NamedTuple):
    """Files that are going to be written; an environment variable may name another folder for them."""

    what: str
    folder: Path  # need not exist
    size: float  # bytes
    variable: str = ""


def check_space(needs: Iterable[Need]) -> None:
    """Check that every disk holds what is going to be written to it.

    Raises:
        RecipeError: A disk does not.
    """
    by_disk: defaultdict[int, list[Need]] = defaultdict(list)
    for need in needs:
        folder = _existing(need.folder)
        by_disk[folder.stat().st_dev].append(need._replace(folder=folder))
    for together in by_disk.values():
        free = shutil.disk_usage(together[0].folder).free
        wanted = sum(need.size for need in together)
        if wanted > free:
            parts = ", ".join(f"{need.size / _GB:.1f} GB for {need.what}" for need in together if need.size)
            variables = " and ".join(
                sorted({need.variable for need in together if need.size and need.variable})
            )
            raise RecipeError(
                "the disk does not hold this pair",
                values=f"{free / _GB:.1f} GB free on the disk of {together[0].folder}",
                limit=f"{wanted / _GB:.1f} GB: {parts}",
                remedy="free some space"
                + (f", or point {variables} to a folder on another disk" if variables else ""),
            )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
