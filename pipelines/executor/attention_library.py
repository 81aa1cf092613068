"""Loads the attention operator of our own, which an engine carries as a library (``build/attention``)."""

from __future__ import annotations

import ctypes
import functools
import os

from pipelines.errors import EngineLoadError
from pipelines.manifest import EngineFiles

ATTENTION_LIBRARY = "attention.so"


def attention_library(files: EngineFiles) -> str | None:
    """Load the operator of an engine, after OpenVINO was imported.

    Args:
        files: Files of the engine.

    Returns:
        A path by which OpenVINO finds the library; None if the engine uses OpenVINO's attention.

    Raises:
        EngineLoadError: The library has changed, or does not fit the installed OpenVINO.
    """
    if ATTENTION_LIBRARY not in files.manifest["files"]:
        return None
    content = files.read(ATTENTION_LIBRARY)
    try:
        return _loaded(content)
    except OSError as error:
        raise EngineLoadError(
            "the engine's attention operator cannot be loaded",
            values=f"{files.path(ATTENTION_LIBRARY)}: {error}",
            limit="the version of OpenVINO that it was compiled with",
            remedy=f"remove the engine (rm -r {files.directory}) and run 'make engines'",
        ) from None


@functools.cache
def _loaded(content: bytes) -> str:
    """Load bytes that were checked from memory, where no other program can change them.

    The library stays as long as the process, because networks that use it may outlive any other reference.
    """
    file = os.memfd_create("draftproof-attention")
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(content)
    path = f"/proc/self/fd/{file}"
    ctypes.CDLL(path)
    return path
