from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a long test that imports torch, which takes each worker three seconds, where none runs."""
    is_long = collection_path.name == "test_demo_training.py"
    return True if is_long and "not long" in config.option.markexpr else None
