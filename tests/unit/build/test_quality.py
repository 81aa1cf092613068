"""Tests of what a quantization costs: parts compute what an engine does, and the command says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.quality.engines import BLOCKS, compile_network, step
from benchmarks.quality.predictions import surprises as expected_surprises
from build import quality
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.openvino.operations import openvino_product
from build.preflight import main
from pipelines.executor.step import Chunk
from tests.support.hugging_face_checkpoints import make_hugging_face


@pytest.mark.parametrize(("quantization", "rounding_group"), [("none", 0), ("int8", 128), ("int4", 32)])
def test_parts_compute_what_an_engine_does(quantization: str, rounding_group: int, tmp_path: Path) -> None:
    network = open_network(make_hugging_face(tmp_path / "network", "qwen3")).read()
    windows = np.random.default_rng(0).integers(1, 2000, (3, 40)).astype(np.int32)
    changed = apply_quantization(network, quantization, "int8" if rounding_group else "checkpoint")
    given = changed, windows.tolist(), openvino_product, rounding_group, lambda: None
    engine = compile_network(tmp_path / "engine", network, quantization)
    whole = [Chunk(ids, 0, BLOCKS, is_decode=False, num_logits=len(ids)) for ids in windows]
    expected = [expected_surprises(step(engine, chunk), chunk.token_ids) for chunk in whole]
    assert quality.surprises(*given) == pytest.approx(np.array(expected), abs=1e-6)


def test_preflight_says_what_was_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {"checkpoint": str(make_hugging_face(tmp_path / "target")), "quantization": "int4"}
    recipe = tmp_path / "pair.yaml"
    document = {"name": "pair", "target": engine, "draft": engine, "serving": {"max_seq_len": 128}}

    def said(*options: str, **settings: str) -> str:
        recipe.write_text(yaml.safe_dump({**document, "target": {**engine, **settings}}), encoding="utf-8")
        assert main(["--recipe", str(recipe), "--engines", str(tmp_path / "engines"), *options]) == 0
        return capsys.readouterr().out

    assert f"preflight --quality --recipe {recipe}" in said()
    assert "target, int4: perplexity on code" in said("--quality")
    monkeypatch.setattr(quality, "measure", lambda *given: pytest.fail("it was measured"))
    assert "target, int4: perplexity on prose" in said("--quality")
    assert "none: weights stay as the checkpoint has them\n{" in said(quantization="none")
    assert "int4: rounds weights of layers and the output head" in said(lm_head="int8")
