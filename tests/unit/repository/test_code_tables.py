"""Tests that tables and pictures of the pages show the code as it is."""

from __future__ import annotations

import dataclasses

import pytest

from build.recipe import EngineRecipe, Serving
from docs.code_tables.__main__ import TABLES, files
from docs.code_tables.metrics import metrics
from docs.code_tables.recipe_keys import recipe_keys
from docs.licences import differing


def test_pages_and_pictures_are_up_to_date() -> None:
    stale = [path for path, text in files().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run: make docs"


def test_every_table_stands_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in files() if path.suffix == ".md")
    assert [name for name in TABLES if f"<!-- code:{name} -->" not in pages] == []
    assert "<!-- figures:" not in pages


def test_each_recipe_key_stands_with_its_type_and_default() -> None:
    table = recipe_keys()
    assert "| `serving.max_queue_size` | integer | `64` | Requests that may wait. |" in table
    assert "| `*.tensorrt_llm.gpu_device_ids` | list of integers or none | none |" in table
    for field in dataclasses.fields(Serving):
        assert f"| `serving.{field.name}` |" in table or f"| `serving.{field.name}." in table
    for field in dataclasses.fields(EngineRecipe):
        assert f"| `*.{field.name}" in table


@pytest.mark.parametrize(
    "row",
    [
        "| `draftproof_kv_blocks` | models |",
        "| `draftproof_triton_restarts_total` | gateway | Restarts of Triton |",
        "| `vllm:spec_decode_num_drafts_total` | models |",
    ],
)
def test_metrics_of_every_process_are_listed(row: str) -> None:
    assert row in metrics()


def test_the_notices_name_every_locked_package() -> None:
    assert differing() == [], "run: make licences"
