"""Random networks of every family, made with numpy alone, and what transformers computes with them."""

from __future__ import annotations

import functools
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor, write_tensors

FOLDER = Path(__file__).parent
NUM_TOKENS, NUM_PROMPT, NUM_GREEDY = 200, 130, 24
ROWS = np.arange(7, NUM_TOKENS, 12)
"""Positions of the text whose logits are kept."""


def token_ids(vocab_size: int = 512) -> npt.NDArray[np.int32]:
    """Return the text of all comparisons."""
    return np.random.default_rng(1).integers(0, vocab_size, NUM_TOKENS, dtype=np.int32)


@functools.cache
def _documents() -> dict[str, Any]:
    documents: dict[str, Any] = json.loads((FOLDER / "families.json").read_text(encoding="utf-8"))
    return documents


def config_of(name: str) -> dict[str, Any]:
    """Return the ``config.json`` that transformers writes for a family."""
    config: dict[str, Any] = json.loads(json.dumps(_documents()[name]["config"]))
    return config


def weights_of(name: str, shapes: dict[str, list[int]] | None = None) -> dict[str, Float32Array]:
    """Return random weights. Gains differ from 1 and biases from 0: a forgotten one changes the logits."""
    found = {}
    for tensor, shape in (shapes or _documents()[name]["shapes"]).items():
        random = np.random.default_rng(zlib.crc32(tensor.encode())).standard_normal(shape, np.float32)
        if "norm" in tensor:
            gain = 0 if name.startswith(("gemma", "qwen3_5")) else 1
            found[tensor] = np.float32(gain) + np.float32(0.2) * random
        elif "bias" in tensor:
            found[tensor] = np.float32(0.1) * random
        else:
            found[tensor] = random * np.float32(0.5 if "embed" in tensor else shape[-1] ** -0.5)
    return found


def save_family(name: str, directory: Path) -> None:
    """Write the checkpoint of a family."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(name)), encoding="utf-8")
    tensors = {key: Tensor("F32", each.shape, each) for key, each in weights_of(name).items()}
    write_tensors(directory / "model.safetensors", tensors)


@functools.cache
def _arrays() -> dict[str, npt.NDArray[Any]]:
    with np.load(FOLDER / "families.npz") as arrays:
        return dict(arrays)


def logits_of(name: str) -> Float32Array:
    """Return the logits of transformers in float32 at ``ROWS`` of the text."""
    return _arrays()[f"{name}.logits"]


def greedy_of(name: str) -> list[int]:
    """Return the greedy tokens of transformers after ``NUM_PROMPT`` tokens of the text."""
    return [int(each) for each in _arrays()[f"{name}.greedy"]]


def rope_of(case: str) -> tuple[npt.NDArray[Any], float]:
    """Return the frequencies and the magnitude of rotary settings, by ``make.ROPES``."""
    *frequencies, magnitude = _arrays()[f"rope.{case}"]
    return np.array(frequencies), float(magnitude)
