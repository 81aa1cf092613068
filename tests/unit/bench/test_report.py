"""Tests of the bench's text and document."""

from __future__ import annotations

import json

from pipelines.bench.report import as_document
from tests.unit.bench.answers import results


def test_the_document_is_json_with_every_arm_of_every_cell() -> None:
    document = json.loads(json.dumps(as_document(results()), allow_nan=False))
    assert [cell["load"]["kind"] for cell in document["cells"]] == ["closed", "closed", "open"]
    for cell in document["cells"]:
        assert [arm["arm"] for arm in cell["arms"]] == ["target alone", "K=2", "K=4", "adaptive"]
        assert cell["adaptive_compared"][0]["to"] == "target alone"
        assert {each["verdict"] for each in cell["adaptive_compared"]} == {"fail"}
    k4 = next(each for each in document["crossovers"] if each["arm"] == "K=4")
    assert 1 < k4["num_at_once"] < 2
    assert document["was_stopped"] is False
