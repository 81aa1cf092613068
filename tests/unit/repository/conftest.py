"""Keeps the search for garbage away from tests that parse the source."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """Collect nothing: what ends may print a traceback, and Python 3.11 cannot parse that within a parse."""
    gc.disable()
    yield
    gc.enable()
