"""Where the code lies, and where files are written.

In a checkout both are the checkout. Nothing is written into an installed package: its files go where the XDG
directories say, or into the folder of ``--home``, which is laid out like a checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
"""Folder of ``build``, ``pipelines`` and ``model_repository``. Servers run in it, because Triton imports its
Python models from its working directory."""

STAMP = Path(__file__).with_name("installed.json")
"""Written by ``tools/wheel``: which version and commit is installed. A checkout has none."""


def _folder(in_home: str, xdg_variable: str, xdg_default: str) -> Path:
    home = os.environ.get("DRAFTPROOF_HOME")
    if home:
        return Path(home).absolute() / in_home
    if not STAMP.exists():
        return CODE / in_home
    named = Path(os.environ.get(xdg_variable, ""))
    # The standard says that relative paths are ignored.
    return (named if named.is_absolute() else Path.home() / xdg_default) / "draftproof"


DATA = _folder("", "XDG_DATA_HOME", ".local/share")
"""What is worth keeping: engines, packages, results, and checkpoints that recipes name."""

RUN = _folder(".run", "XDG_STATE_HOME", ".local/state")
"""One folder for each server: its log, sockets, key and rendered repository."""

CACHE = _folder(".cache", "XDG_CACHE_HOME", ".cache")

ENGINES = DATA / "engines"


def located(path: str) -> Path:
    """Return where a file is that a recipe names: it came with the code, or lies below ``DATA``.

    Args:
        path: Absolute, or relative to one of the two.
    """
    shipped = CODE / path
    return shipped if shipped.exists() else DATA / path
