"""Makes a draft that shares a part of its tokens with the target, from a draft with the target's tokenizer.

It loses the tokens of the last merges, and the others get new ids. It keeps its weights, so it is accepted
like a trained draft that lacks some of the target's tokens and numbers the others in its own way.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.settings import read_json
from build.checkpoints.tensor_file import read_tensors
from build.checkpoints.tensorrt_llm import EMBEDDING, LM_HEAD
from tests.support.tiny_engines import write_checkpoint


def share_part(source: Path, destination: Path, num_tokens: int, seed: int = 0) -> None:
    """Write a checkpoint with the first ``num_tokens`` tokens of a byte-level BPE, under other ids.

    Args:
        source: TensorRT-LLM checkpoint with ``tokenizer.json``.
        num_tokens: Number of tokens to keep, special ones included, at least 257.
    """
    document = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = [token["id"] for token in document["added_tokens"]]
    others = sorted(set(document["model"]["vocab"].values()) - set(special))
    kept = np.array([*special, *others[: num_tokens - len(special)]])
    order = np.random.default_rng(seed).permutation(kept)  # old id of each new id
    config = read_json(source / "config.json")
    config = {name: value for name, value in config.items() if name not in ("end_id", "end_ids")}
    write_checkpoint(destination, {**config, "vocab_size": num_tokens}, _with_rows(source, order))
    _renumber(document, {int(old): new for new, old in enumerate(order)})
    (destination / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")


def _with_rows(source: Path, order: npt.NDArray[Any]) -> dict[str, Any]:
    tensors = dict(read_tensors(source / "rank0.safetensors"))
    for name in {EMBEDDING, LM_HEAD} & tensors.keys():
        rows = np.ascontiguousarray(tensors[name].data[order])
        tensors[name] = replace(tensors[name], source=rows, shape=rows.shape)
    return tensors


def _renumber(document: dict[str, Any], new_of: dict[int, int]) -> None:
    model = document["model"]
    vocab = {text: new_of[old] for text, old in model["vocab"].items() if old in new_of}
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    model["merges"] = [pair for pair in pairs if {*pair, "".join(pair)} <= vocab.keys()]
    model["vocab"] = vocab
    for token in document["added_tokens"]:
        token["id"] = new_of[token["id"]]
