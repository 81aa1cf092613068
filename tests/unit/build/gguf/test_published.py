"""Tests of published GGUF files, where ``DRAFTPROOF_PUBLISHED`` names a folder that has them.

What they say was compared with transformers (``gguf_file=``), weights and settings, and with llama.cpp,
tokens of 10,000 strings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from build.checkpoints.tokenizer_file import CORPUS, load_tokenizer, read_tokenizer
from build.gguf.unpack import unpack
from build.networks.source import open_network
from build.preflight import find_end_ids
from pipelines.manifest import sha256_file, sha256_json

VARIABLE = "DRAFTPROOF_PUBLISHED"


class Published(NamedTuple):
    """Holds what a file has: layers, hash of the tokens of ``CORPUS``, end tokens, sums of weights."""

    layers: int
    corpus: str
    end_ids: tuple[int, ...]
    sums: list[float]


FILES = {
    # SmolLM2-135M-Instruct, Q4_1
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53": Published(
        30, "0f57f7f53fbc1dff", (0, 2), [97018.930862, 128458.062866, 15.8153591, 1045.09766, 2802140.26964]
    ),
    # Gemma 3 270M, Q4_K_M
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818": Published(
        18, "3a6f4749eb612933", (1, 106), [27173.450540, 21698.138504, 8627.71875, 16861.6953, 5044366.34239]
    ),
    # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32": Published(
        24,
        "9d029aa8e49bce2e",
        (151643, 151645),
        [27940.492237, 43436.011611, 78.4866333, 6479.56592, 1847867.99405],
    ),
    # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046": Published(
        28,
        "9d029aa8e49bce2e",
        (151643, 151645),
        [51516.405368, 139978.053625, 984.319092, 7100.69589, 3178459.31439],
    ),
}


def _found() -> dict[str, Path]:
    folder = os.environ.get(VARIABLE)
    return {} if folder is None else {sha256_file(path): path for path in Path(folder).glob("*.gguf")}


@pytest.mark.long
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder with published files")
def test_published_files_are_the_networks_that_others_read(tmp_path: Path) -> None:
    found = _found()
    assert found, "no file in the folder"
    for digest, path in found.items():
        directory = unpack(path, tmp_path / "cache")
        network = open_network(directory).read()
        layer = network.layer(0)
        arrays = [
            np.concatenate([part.to_float32() for part in layer.qkv]),
            layer.proj.to_float32(),
            layer.input_norm,
            network.final_norm,
        ]
        arrays += [network.embedding.to_float32()]
        info = read_tokenizer(directory / "tokenizer.json")
        tokenizer = load_tokenizer((directory / "tokenizer.json").read_text(encoding="utf-8"))
        ids = [tokenizer.encode(text).ids for text in CORPUS]
        seen = Published(
            network.config.num_hidden_layers,
            sha256_json(ids)[:16],
            find_end_ids(directory, info, network.config.vocab_size),
            [float(np.abs(each, dtype=np.float64).sum()) for each in arrays],
        )
        assert digest in FILES, f"{path.name}, SHA-256 {digest}: {seen}"
        expected = FILES[digest]
        assert seen._replace(sums=[]) == expected._replace(sums=[]), path.name
        assert seen.sums == pytest.approx(expected.sums, rel=1e-6), path.name
