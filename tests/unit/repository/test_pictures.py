"""Tests that the pictures of the documents show the recordings and the code."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from docs.figures.__main__ import PICTURES
from docs.licences import main as licences
from docs.pictures import rollout_phases as phases_module
from docs.pictures.rollout_phases import rollout_phases, transitions
from docs.pictures.stream import stream
from pipelines.canary.controller.plan import read_plan
from tests.conftest import REPOSITORY_ROOT


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_valid_says_its_content_in_words_and_knows_dark_pages(path: object) -> None:
    text = (REPOSITORY_ROOT / str(path)).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert len(root.findtext("{http://www.w3.org/2000/svg}title") or "") > 20
    assert "prefers-color-scheme: dark" in text


def test_the_recorded_stream_is_drawn_with_its_origin_and_its_verdict() -> None:
    recording = json.loads((REPOSITORY_ROOT / "docs/results/demo-stream.json").read_text(encoding="utf-8"))
    assert "The same" in stream(recording)
    assert stream(recording).count('class="piece accepted"') > 10
    recording["streams"]["generate"]["output_ids"][0] += 1
    assert "NOT the same" in stream(recording)


def test_the_phases_are_those_that_the_code_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {(before, after) for before, after, _ in transitions(read_plan())}
    assert {("shadow", "step/1"), ("step/3", "promoting"), ("promoting", "settling")} <= found
    assert ("promoted", "rolling_back") not in found
    routes = {pair: path for pair, path in phases_module._ROUTES.items() if pair != ("loading", "cold_start")}
    monkeypatch.setattr(phases_module, "_ROUTES", routes)
    with pytest.raises(KeyError, match="cold_start"):
        rollout_phases()


def test_the_notices_name_every_locked_package() -> None:
    assert licences(["--check"]) == 0
