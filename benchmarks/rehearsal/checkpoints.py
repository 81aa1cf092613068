"""Write Hugging Face directories with random weights of a published model's shapes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import Tensor, write_tensors

SHARD_BYTES = 1 << 30
"""A shard is complete when it holds as many bytes. Only one is in memory at a time."""

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_END_OF_TEXT = "<|endoftext|>"


def write_checkpoint(
    directory: Path, settings: Mapping[str, Any], seed: int, num_words: int, num_used: int
) -> None:
    """Write ``config.json``, ``tokenizer.json`` and shards with random BF16 weights.

    Names and shapes of the tensors are those of the model's class in transformers. Every weight of a matrix
    has a random sign and mantissa, and the exponent that preserves the variance of its inputs: the time of a
    step does not depend on the values.

    Args:
        directory: Created; must not exist.
        settings: Keys of ``config.json``; the end token becomes token 0.
        seed: Seed of the weights.
        num_words: Tokens of the tokenizer, which is made up.
        num_used: Rows of the embedding; those behind them are 0, so the network never chooses their tokens.
    """
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    written: dict[str, str] = {}
    for number, shapes in enumerate(_shards(_tensor_shapes(settings)), 1):
        name = f"model-{number:05d}.safetensors"
        offset = settings["model_type"].startswith("gemma")  # whose gains are 1 + the stored number
        tensors = {tensor: _random(rng, tensor, shape, offset) for tensor, shape in shapes.items()}
        for tensor, values in tensors.items():
            if values.shape[0] == settings["vocab_size"]:
                values.data[num_used:] = 0
            written[tensor] = name
        write_tensors(directory / name, tensors, {"format": "pt"})
    documents = {
        "model.safetensors.index.json": {"metadata": {}, "weight_map": written},
        "config.json": {**settings, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        "tokenizer.json": made_up_tokenizer(num_words),
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document), encoding="utf-8")


def _tensor_shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of a model, without allocating it."""
    import torch
    import transformers

    known = {name: value for name, value in settings.items() if not name.startswith(("rope_", "eos_"))}
    config = transformers.AutoConfig.for_model(**known, pad_token_id=0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tied = {"lm_head.weight"} if settings["tie_word_embeddings"] else set()
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


def _shards(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    for name, shape in shapes.items():
        shard[name] = shape
        num_bytes += 2 * math.prod(shape)
        if num_bytes >= SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
    if shard:
        yield shard


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], is_offset: bool) -> Tensor:
    if len(shape) == 1:  # a gain or a bias
        is_gain = "norm" in name and not is_offset
        return Tensor.from_float32(np.full(shape, float(is_gain), np.float32), "BF16")
    deviation = shape[1] ** -0.5
    exponent = round(math.log2(deviation / 1.53))  # numbers from 1 to 2 have a root mean square of 1.53
    bits = rng.integers(0, 1 << 16, shape, np.uint16)
    bits &= 0x807F  # sign and mantissa
    bits |= (exponent + 127) << 7
    return Tensor("BF16", shape, bits)


def made_up_tokenizer(num_words: int) -> dict[str, Any]:
    """Return the content of a ``tokenizer.json`` with so many tokens.

    They are bytes, then words of two to four letters. Files and tables are about as large as those of a real
    tokenizer. Texts have more tokens.
    """
    # GPT-2's spelling of bytes: printable ones stand for themselves, the others for U+0100 onwards.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    words = [_END_OF_TEXT, *(spelling[byte] for byte in range(256))]
    longer = (
        "".join(letters) for length in (2, 3, 4) for letters in itertools.product(_LETTERS, repeat=length)
    )
    made = list(itertools.islice(longer, num_words - len(words)))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": _END_OF_TEXT, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate([*words, *made])},
            "merges": [[word[:-1], word[-1]] for word in made],
        },
    }
