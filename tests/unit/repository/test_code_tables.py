"""Tests that the tables of the reference pages list what the code declares."""

from __future__ import annotations

import dataclasses
import gc
import re

from build.recipe import EngineRecipe, Serving
from docs.code_tables.errors import errors
from docs.code_tables.make_targets import make_settings, make_targets
from docs.code_tables.metrics import metrics
from docs.code_tables.recipe_keys import recipe_keys
from docs.code_tables.upstream import EMITTED, upstream
from pipelines.errors import ServerBusyError
from tests.conftest import REPOSITORY_ROOT
from tests.support import llm_arguments, tensorrt_llm_1_2_1, tensorrt_llm_1_2_1_models


def test_each_recipe_key_stands_with_its_type_and_default() -> None:
    table = recipe_keys()
    assert "| `serving.max_queue_size` | integer | `64` | Requests that may wait. |" in table
    assert "| `*.lm_head` | `int8`, `checkpoint` | `checkpoint` |" in table
    assert "| `*.tensorrt_llm.gpu_device_ids` | list of integers or none | none |" in table
    assert "| `path` |" not in table
    for field in dataclasses.fields(Serving):
        assert f"| `serving.{field.name}` |" in table
    for field in dataclasses.fields(EngineRecipe):
        assert f"| `*.{field.name}" in table


def test_metrics_of_models_gateway_and_front_door_are_listed() -> None:
    table = metrics()
    assert "| `draftproof_kv_blocks` | models |" in table
    assert "| `draftproof_triton_restarts_total` | gateway | Restarts of Triton |" in table
    assert "| `vllm:kv_cache_usage_perc` | front door |" in table
    assert "| `vllm:spec_decode_num_drafts_total` | front door |" in table


def test_errors_are_those_of_the_tree_alone() -> None:
    class OfATest(ServerBusyError):
        """An error that must not be listed."""

    table = errors()
    assert "| `draftproof/server_busy` | `ServerBusyError` |" in table
    assert OfATest.__name__ not in table
    del OfATest
    gc.collect()  # other tests of this process find errors by the subclasses that exist


def test_targets_and_settings_are_those_of_the_makefile() -> None:
    assert "| `make docs` |" in make_targets()
    assert "| `RECIPE` | `demo` |" in make_settings()


def test_every_source_of_our_tables_is_in_the_table_of_upstream() -> None:
    tables = (
        {flag.source for flag in tensorrt_llm_1_2_1.FLAGS.values()},
        {tensor.source for tensor in tensorrt_llm_1_2_1_models.INPUTS.values()},
        {parameter.source for parameter in tensorrt_llm_1_2_1_models.PARAMETERS.values()},
        {llm_arguments.ARGUMENTS, llm_arguments.DRAFT_1_3, llm_arguments.SERVE},
    )
    readers = {reader for row in EMITTED for reader in row.readers}
    for source in set().union(*tables):
        path, commit = source.split()[0], re.findall(r"@(\w{8})", source)[0]
        assert f"{path} @{commit}" in readers, source


def test_the_table_of_upstream_names_files_that_exist() -> None:
    for row in EMITTED:
        assert f"(`{row.writer}`)" in upstream()
        for path in (row.writer, row.test):
            assert (REPOSITORY_ROOT / path).exists(), path
