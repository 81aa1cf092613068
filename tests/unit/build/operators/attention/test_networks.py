"""Tests of engines with attention of our own: families of networks, and blocks that are copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.engines import BLOCKS, NUM_BLOCKS, compile_network, step
from build.networks.network import Network
from build.networks.source import open_network
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk
from pipelines.manifest import EngineFiles
from tests.golden.families import save_family, token_ids
from tests.support.compiler import needs_compiler
from tests.support.network_engines import count_rows_differing, decoded_rows, prompt_logits
from tests.support.tiny_engines import build_tiny_pair

pytestmark = needs_compiler

NUM_PROMPT = 100  # more than the windows
IDS = np.random.default_rng(1).integers(0, 448, 120).astype(np.int32)


@pytest.mark.parametrize("name", ["gemma3_text", "granite", "mistral", "phi3-heads96", "qwen3"])
def test_a_family_is_computed_as_with_openvinos_attention(name: str, tmp_path: Path) -> None:
    """Windows in some layers or all, another factor of the scores, heads of 96, norms of heads."""
    save_family(name, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    theirs, ours = (
        compile_network(tmp_path / attention, network, "none", attention)
        for attention in ("openvino", "draftproof")
    )
    expected, found = (prompt_logits(engine, IDS, NUM_PROMPT) for engine in (theirs, ours))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * float(np.abs(expected).max()))
    rows = decoded_rows(ours, IDS, NUM_PROMPT, 5)
    np.testing.assert_allclose(rows, expected[NUM_PROMPT:], rtol=0, atol=1e-4 * float(np.abs(expected).max()))


def with_sinks(network: Network, lowest: float, highest: float) -> Network:
    sinks = np.linspace(lowest, highest, network.config.num_attention_heads, dtype=np.float32)
    config = replace(network.config, has_sinks=True)
    return replace(network, config=config, layer=lambda index: replace(network.layer(index), sinks=sinks))


def test_sinks_take_their_share_of_every_row(tmp_path: Path) -> None:
    save_family("mistral", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    networks = {
        "without": network,
        "far below": with_sinks(network, -200, -100),
        "among the scores": with_sinks(network, -2, 4),
    }
    engines = {
        name: compile_network(tmp_path / name, each, "none", "draftproof") for name, each in networks.items()
    }
    without, below, among = (prompt_logits(engine, IDS, NUM_PROMPT) for engine in engines.values())
    assert np.array_equal(below, without)
    assert np.abs(among - without).max() > 0.1
    assert count_rows_differing(engines["among the scores"], token_ids()) == 0


def test_a_copied_block_continues_with_the_same_bits(tmp_path: Path) -> None:
    _, target = build_tiny_pair(tmp_path, kv_cache_dtype="int8", attention="draftproof")
    engine = load_engine(EngineFiles(target), NUM_BLOCKS)
    step(engine, Chunk(IDS[:40], 0, BLOCKS, is_decode=False, num_logits=1))
    engine.copy_block(BLOCKS[1], NUM_BLOCKS - 1)
    other = (BLOCKS[0], NUM_BLOCKS - 1)
    first, second = (
        step(engine, Chunk(IDS[40:50], 40, blocks, is_decode=True, num_logits=10))
        for blocks in (BLOCKS, other)
    )
    assert np.array_equal(first, second)
