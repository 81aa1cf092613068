"""Tests of the calibration of a draft whose texts have more tokens than the target's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from build.engines import build_engines
from build.recipe import parse_recipe
from pipelines.bench.calibration.__main__ import load_executors
from pipelines.bench.calibration.acceptance import measure_acceptance
from pipelines.errors import IncompatiblePairError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from tests.support.checkpoints import make_checkpoint
from tests.support.partly_shared import share_part


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    make_checkpoint(folder / "target", num_hidden_layers=1)
    share_part(folder / "target", folder / "draft", 700)
    # In float32, so that no processor's rounding decides which of a random draft's tokens are right.
    raw = {role: {"checkpoint": str(folder / role), "quantization": "none"} for role in ("target", "draft")}
    document = {"name": "shared", **raw, "serving": {"max_seq_len": 256}}
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(document))
    recipe = parse_recipe(document, path)
    built = build_engines(recipe, folder / "engines", lambda line: None)
    return Path(built["draft"]), Path(built["target"])


def test_prompts_that_the_draft_splits_more_finely_are_drafted_for(pair: tuple[Path, Path]) -> None:
    draft, target = load_executors(*pair)
    token_map = draft._token_map
    assert token_map is not None
    prompt = np.argsort(np.diff(token_map.begins))[-90:].astype(np.int32)
    assert len(token_map.translate_prompt(prompt)) > 160
    found = measure_acceptance(draft, target, {"long": prompt}, max_tokens=64)
    assert max(found.rates) > 0 and len(set(found.shares)) > 1


def test_a_draft_that_refuses_every_request_is_an_error(pair: tuple[Path, Path]) -> None:
    limits = ExecutorLimits(
        max_batch_size=2, max_num_tokens=64, max_seq_len=8, max_queue_size=0, num_kv_blocks=4
    )
    _, target = load_executors(*pair)
    with pytest.raises(IncompatiblePairError, match=r"proposed no token.*; 1 prompts"):
        measure_acceptance(
            Executor.load(pair[0], limits), target, {"long": np.arange(9, 29, dtype=np.int32)}, max_tokens=8
        )
