"""Tests of the result file of a fleet's drills."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fleet_drills.__main__ import FORMAT, _write
from tests.fleet_drills.faults import FAULTS

FIRST, SECOND, THIRD, *_ = FAULTS


def test_a_file_keeps_the_drills_of_other_runs_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "drills.json"
    _write(path, [{"drill": FIRST, "rounds": 1}, {"drill": THIRD, "rounds": 1}])
    _write(path, [{"drill": SECOND, "rounds": 2}, {"drill": FIRST, "rounds": 2}])
    document = json.loads(path.read_text(encoding="utf-8"))
    found = [(each["drill"], each["rounds"]) for each in document["drills"]]
    assert found == [(FIRST, 2), (SECOND, 2), (THIRD, 1)]


def test_drills_of_another_format_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "drills.json"
    path.write_text(json.dumps({"format": FORMAT - 1, "drills": [{"drill": FIRST}]}), encoding="utf-8")
    _write(path, [{"drill": SECOND}])
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [each["drill"] for each in document["drills"]] == [SECOND]
