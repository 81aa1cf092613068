"""Loads the operators of our own, which an engine carries as a library (``build/operators``)."""

from __future__ import annotations

import ctypes
import functools
import os

from pipelines.errors import EngineLoadError
from pipelines.manifest import EngineFiles


def operator_library(files: EngineFiles) -> str | None:
    """Load the operators of an engine, after OpenVINO was imported.

    Args:
        files: Files of the engine.

    Returns:
        A path by which OpenVINO finds the library; None if the engine has none.

    Raises:
        EngineLoadError: The library has changed, or does not fit the installed OpenVINO.
    """
    name = next((name for name in files.manifest["files"] if name.endswith(".so")), None)
    if name is None:
        return None
    content = files.read(name)
    try:
        return _loaded(content)
    except OSError as error:
        raise EngineLoadError(
            "the engine's operators cannot be loaded",
            values=f"{files.path(name)}: {error}",
            limit="the version of OpenVINO that they were compiled with",
            remedy=f"remove the engine (rm -r {files.directory}) and run 'make engines'",
        ) from None


@functools.cache
def _loaded(content: bytes) -> str:
    """Load bytes that were checked from memory, where no other program can change them.

    The library stays as long as the process, because networks that use it may outlive any other reference.
    """
    file = os.memfd_create("draftproof-operators")
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(content)
    path = f"/proc/self/fd/{file}"
    ctypes.CDLL(path)
    return path
