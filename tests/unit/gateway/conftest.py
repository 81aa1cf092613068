"""Gives tests a gateway."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.unit.gateway.running_gateway import Gateway, running_gateway


@pytest.fixture
def gateway(tmp_path: Path) -> AbstractAsyncContextManager[Gateway]:
    return running_gateway(tmp_path)
