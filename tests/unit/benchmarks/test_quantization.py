"""Tests of the benchmarks of quantization: divergence, the trained pair, and steps of a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.families.chats import byte_tokenizer
from benchmarks.families.divergence import Divergence, mean_kl
from benchmarks.quantized_pair import QUANTIZATIONS, main
from benchmarks.quantized_steps import ROWS, measure_steps
from pipelines.executor.engine import Engine
from pipelines.manifest import EngineFiles
from tests.support.tiny_engines import build_tiny_pair


def test_divergence_is_what_its_definition_says() -> None:
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    q = np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    logits = (np.log(p) + 5).astype(np.float32), np.log(q).astype(np.float32)
    found = Divergence.measure(*logits, np.array([2, 0, 1], np.int32))
    assert found.kl == pytest.approx(0.25 * np.log(2) / 3, abs=1e-6)  # of the first position
    assert found.same_argmax == pytest.approx(2 / 3)
    assert found.lost_nats == pytest.approx(np.log(2) / 2, abs=1e-6)  # token 0 follows the first position
    assert mean_kl(*logits) == found.kl
    assert Divergence.measure(logits[0], logits[0], np.array([0, 1, 2], np.int32)) == Divergence(
        0.0, 1.0, 0.0
    )


@pytest.mark.long  # measures the demonstration pair; the other tests measure small ones
def test_the_trained_pair_is_measured_in_every_quantization(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--windows", "4", "--prompts", "4"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    for role in ("target", "draft"):
        none, int8, int4 = (document["divergence"][role][name] for name in QUANTIZATIONS)
        assert none["kl"]["value"] == 0 and none["perplexity_ratio"]["value"] == 1
        assert 0 < int8["kl"]["value"] < 0.002 < int4["kl"]["value"] < 0.05
        assert int4["same_argmax"]["value"] < int8["same_argmax"]["value"] < 1
        low, high = int4["perplexity_ratio"]["interval"]
        assert low <= int4["perplexity_ratio"]["value"] <= high
    pairs = {(each["target"], each["draft"]): each for each in document["acceptance"]}
    assert len(pairs) == 9 and pairs["none", "none"]["change"] == 0
    assert all(0.2 < each["acceptance_rate"] < 1 for each in pairs.values())
    assert document["conditions"]["engines"]["target int4"]["quantization"] == "int4"


def test_steps_of_two_engines_are_timed_in_turn(tmp_path: Path) -> None:
    _, target = build_tiny_pair(tmp_path)
    engines = [Engine(EngineFiles(target), 8) for _ in range(2)]
    for num_rows in ROWS:
        times = measure_steps(*engines, num_rows, 3)
        assert times.num_rows == num_rows and times.int8_ms > 0 and times.int4_ms > 0
        assert times.ratio_quartiles[0] <= times.ratio <= times.ratio_quartiles[1]


def test_a_byte_tokenizer_reads_names_of_special_tokens_and_any_text() -> None:
    tokenizer = byte_tokenizer(["<|im_end|>"])
    ids = tokenizer.encode("a\u2615<|im_end|>").ids
    assert len(ids) == 5 and ids[-1] == 256 and tokenizer.decode(ids, skip_special_tokens=False).endswith(">")
