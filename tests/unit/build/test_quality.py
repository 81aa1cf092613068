"""Tests of what a quantization costs: parts compute what an engine does, and the command says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.quality.engines import attention_for, compile_network, piece, step
from benchmarks.quality.predictions import surprises as expected_surprises
from build import quality
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.openvino.operations import openvino_product
from build.preflight import main
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import make_hugging_face


@pytest.mark.parametrize(
    ("family", "quantization", "rounding_group"),
    [
        *(("qwen3", "none", 0), ("qwen3", "int8", 128), ("qwen3", "int4", 32)),
        *(pytest.param(name, "none", 0, marks=needs_compiler) for name in ("qwen3_5_text", "qwen3_moe")),
    ],
)
def test_parts_compute_what_an_engine_does(
    family: str, quantization: str, rounding_group: int, tmp_path: Path
) -> None:
    save_family(family, tmp_path / "network")
    network = open_network(tmp_path / "network").read()
    windows = np.random.default_rng(0).integers(1, 512, (3, 40)).astype(np.int32)
    changed = apply_quantization(network, quantization, "int8" if rounding_group else "checkpoint")
    given = changed, windows.tolist(), openvino_product, rounding_group, lambda: None
    engine = compile_network(tmp_path / "engine", network, quantization, attention_for(network.config))
    whole = [piece(engine, ids, 0, len(ids), is_decode=False) for ids in windows]
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
