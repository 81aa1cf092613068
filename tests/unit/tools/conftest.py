from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out long tests that import torch, which takes each worker three seconds, where none will run."""
    is_long = collection_path.name in ("test_demo_training.py", "test_train_head.py")
    return True if is_long and "not long" in config.option.markexpr else None
