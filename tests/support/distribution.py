"""Distributes the tests over the workers of pytest-xdist.

The tests of a file run on one worker, because they share its fixtures. So do the tests of files with the same
mark ``xdist_group``, which share something expensive: a server, or the import of torch.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

INTEGRATION = Path(__file__).resolve().parents[1] / "integration"
_COMPUTING_PER_WAITING = 2


class ByGroupOrFile(LoadGroupScheduling):
    """Gives each worker the tests of one group or file at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).split("::")[0]


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order files so that workers which wait for servers run beside workers which compute.

    Each file of ``tests/integration`` is followed by two others. The others left at the end are short.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    waiting = [tests for tests in files if INTEGRATION in tests[0].path.parents]
    computing = [tests for tests in files if INTEGRATION not in tests[0].path.parents]
    ordered: list[pytest.Item] = []
    for tests in waiting:
        ordered += tests
        for _ in range(_COMPUTING_PER_WAITING):
            ordered += computing.pop(0) if computing else []
    return ordered + [item for tests in computing for item in tests]
