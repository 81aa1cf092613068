"""Tests of the published GGUF files, where ``make published`` has brought them.

What they say was compared with transformers (``gguf_file=``), weights and settings, and with llama.cpp,
tokens of 10,000 strings.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from build.checkpoints.tokenizer_file import CORPUS, find_end_ids, load_tokenizer, read_tokenizer
from build.gguf.translate import translate
from build.networks.source import open_network
from pipelines.manifest import sha256_json
from tools.published import PUBLISHED, Published


class Facts(NamedTuple):
    """Holds what a file has: layers, hash of the tokens of ``CORPUS``, end tokens, sums of weights."""

    layers: int
    corpus: str
    end_ids: tuple[int, ...]
    sums: list[float]


FACTS = {
    "smollm2-135m-instruct-q4_1.gguf": Facts(
        30, "0f57f7f53fbc1dff", (0, 2), [97018.930862, 128458.062866, 15.8153591, 1045.09766, 2802140.26964]
    ),
    "gemma-3-270m-q4_k_m.gguf": Facts(
        18, "3a6f4749eb612933", (1, 106), [27173.450540, 21698.138504, 8627.71875, 16861.6953, 5044366.34239]
    ),
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": Facts(
        24,
        "9d029aa8e49bce2e",
        (151643, 151645),
        [27940.492237, 43436.011611, 78.4866333, 6479.56592, 1847867.99405],
    ),
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": Facts(
        28,
        "9d029aa8e49bce2e",
        (151643, 151645),
        [51516.405368, 139978.053625, 984.319092, 7100.69589, 3178459.31439],
    ),
}


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.long] * ("smollm2" not in each.name))
        for each in PUBLISHED
    ],
)
def test_a_published_file_is_the_network_that_others_read(published: Published, tmp_path: Path) -> None:
    if not published.path.is_file():
        pytest.skip(f"{published.path} does not exist; 'make published' brings it")
    directory = translate(published.path, tmp_path / "cache")
    network = open_network(directory).read()
    layer = network.layer(0)
    arrays = [np.concatenate([part.to_float32() for part in layer.qkv]), layer.proj.to_float32()]
    arrays += [layer.input_norm, network.final_norm, network.embedding.to_float32()]
    info = read_tokenizer(directory / "tokenizer.json")
    tokenizer = load_tokenizer((directory / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [tokenizer.encode(text).ids for text in CORPUS]
    expected = FACTS[published.name]
    assert network.config.num_hidden_layers == expected.layers
    assert find_end_ids(directory, info, network.config.vocab_size) == expected.end_ids
    assert sha256_json(ids)[:16] == expected.corpus
    sums = [float(np.abs(each, dtype=np.float64).sum()) for each in arrays]
    assert sums == pytest.approx(expected.sums, rel=1e-6)
