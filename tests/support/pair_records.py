"""Records of pairs for tests that need no engines."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pipelines.deploy.triton.pair_record import PairRecord

_EMPTY = {"str": "", "int": 0, "bool": True, "dict[str, int]": {}}


def pair_record(**given: Any) -> PairRecord:
    """Return a record with the given values and empty ones."""
    return PairRecord(**{**{each.name: _EMPTY[str(each.type)] for each in fields(PairRecord)}, **given})
