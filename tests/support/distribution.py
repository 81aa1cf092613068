"""Distributes the tests over the workers of pytest-xdist.

The tests of a file run on one worker, because they share its fixtures. So do the tests of files with the same
mark ``xdist_group``, which share something expensive: a server, or the import of torch.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

INTEGRATION = Path(__file__).resolve().parents[1] / "integration"
_GROUP = re.compile(r'pytest\.mark\.xdist_group\("(.+?)"\)')
_COMPUTING_PER_WAITING = 2
_LONG = frozenset({"test_row_rule.py", "test_draft_length.py", "test_distribution.py", "test_rolling_out.py"})


class ByGroupOrFile(LoadScopeScheduling):
    """Gives each worker the tests of one group or file at a time.

    xdist's own ``loadgroup`` reads groups from ids of tests, where pytest 9.2 no longer shows them
    (pytest-xdist 1386). So the mark is read from the file.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return _group_in(self.config.rootpath / file) or file


@cache
def _group_in(file: Path) -> str:
    mark = _GROUP.search(file.read_text(encoding="utf-8"))
    return mark[1] if mark else ""


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order files so that workers which wait for servers run beside workers which compute.

    Each file of ``tests/integration`` is followed by two others, the longest first. Those left at the end are
    short, so that no worker ends long after the others.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    waiting = [tests for tests in files if INTEGRATION in tests[0].path.parents]
    computing = [tests for tests in files if INTEGRATION not in tests[0].path.parents]
    computing.sort(key=lambda tests: tests[0].path.name not in _LONG)
    ordered: list[pytest.Item] = []
    for tests in waiting:
        ordered += tests
        for _ in range(_COMPUTING_PER_WAITING):
            ordered += computing.pop(0) if computing else []
    return ordered + [item for tests in computing for item in tests]
