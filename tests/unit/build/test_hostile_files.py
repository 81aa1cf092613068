"""Files that somebody made to do harm: each is read or refused, in seconds and in bounded memory.

All of it happens in one child process with limits, so that what escapes them ends that one.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.checkpoints.engine_texts import read_engine_texts
from build.checkpoints.tensor_file import read_tensors
from build.checkpoints.tokenizer_file import find_end_ids, read_tokenizer
from build.gguf.file import open_gguf
from build.gguf.network import config_of, tensors_of
from build.gguf.tokenizer import tokenizer_of
from build.hugging_face.config import parse_network_config
from build.networks.source import open_network
from pipelines.errors import CheckpointError, IncompatiblePairError
from tests.golden.families import save_family
from tests.support.checkpoints import make_checkpoint
from tests.support.gguf_files import byte_pairs, pieces, write_gguf
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face
from tests.support.trained_heads import HIDDEN, RandomHead

DEEP = "[" * 2000 + "]" * 2000
VALUES = ("[]", "{}", '"x"', "[[1]]", '{"a": 1}', "1e400", "-1", str(2**70), "9" * 5000, "0.5", "true", DEEP)
_PLACE = "a place for each value"
Failures = list[str]


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))


@pytest.fixture(scope="module", name="bounded")
def _bounded() -> Iterator[Callable[..., Failures]]:
    """Return a function that runs another in a process with limits; one for all tests of this module."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_limit) as pool:
        yield lambda work, *arguments: pool.submit(work, *arguments).result(timeout=300)


def _changed(document: Any) -> Iterator[tuple[str, str]]:
    """Yield a name and the text of a document for each of its values and each other value."""

    def places(value: Any, name: str) -> Iterator[tuple[str, Any]]:
        yield name, _PLACE
        keys = value if isinstance(value, dict) else range(2)[: len(value)] if isinstance(value, list) else ()
        for key in keys:
            for deeper, changed in places(value[key], f"{name}.{key}"):
                copy = dict(value) if isinstance(value, dict) else list(value)
                copy[key] = changed
                yield deeper, copy

    for name, changed in places(document, ""):
        for value in VALUES:
            yield f"{name}={value:.30}", json.dumps(changed).replace(f'"{_PLACE}"', value)


def _failures(
    cases: Iterator[tuple[str, Any]], write: Callable[[Any], Any], read: Callable[[], Any]
) -> Failures:
    found = []
    for name, content in cases:
        write(content)
        try:
            read()
        except (CheckpointError, IncompatiblePairError) as error:
            if len(str(error)) > 2000 or not (error.message and error.remedy):
                found.append(f"{name}: {error!s:.200}")
        except BaseException as error:
            found.append(f"{name}: {type(error).__name__}: {error!s:.200}")
    return found


def _config(directory: Path, target: Path | None = None) -> Failures:
    path = directory / "config.json"
    known = None if target is None else open_network(target)
    cases = _changed(json.loads(path.read_text(encoding="utf-8")))
    return _failures(cases, path.write_text, lambda: open_network(directory, 1, known))


FAMILIES = ("llama", "gemma3_text", "qwen3_5_text", "gpt_oss", "phi3", "smollm3", "qwen2_moe")


@pytest.mark.parametrize(
    "name",
    [
        *FAMILIES[:3],
        *(pytest.param(each, marks=pytest.mark.long) for each in FAMILIES[3:]),
        "rope",
        "quantized",
        "awq",
        "tensorrt_llm",
        "head",
    ],
)
def test_any_change_of_a_configuration_is_read_or_refused(
    name: str, tmp_path: Path, bounded: Callable[..., Failures]
) -> None:
    directory, target = tmp_path / "model", None
    if name in FAMILIES:
        save_family(name, directory)
    elif name == "tensorrt_llm":
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        make_checkpoint(directory, rotary_scaling={**scaling, "original_max_position_embeddings": 64})
    elif name == "head":
        target = make_hugging_face(tmp_path / "target", hidden_size=HIDDEN, num_hidden_layers=6)
        RandomHead().save(directory, "speculators")
    else:
        make_hugging_face(directory)
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32}
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
        group = {"targets": ["re:.*proj", "Linear"], "weights": weights}
        sections: dict[str, dict[str, Any]] = {
            "rope": {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {**yarn, "mscale": 1.0}},
            "quantized": {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"group_0": group},
                }
            },
            "awq": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
        }
        change_config(directory, **sections[name])
    assert bounded(_config, directory, target) == []


def _beside(directory: Path, name: str) -> Failures:
    path = directory / name
    tokenizer = read_tokenizer(directory / "tokenizer.json")

    def read() -> None:
        if name == "tokenizer.json":
            read_tokenizer(path)
        find_end_ids(directory, tokenizer, 512)
        read_engine_texts(directory)
        open_network(directory)

    document = json.loads(path.read_text(encoding="utf-8"))
    if name == "tokenizer.json":
        document["model"]["merges"] = document["model"]["merges"][:1]
        document["model"]["vocab"] = {text: number for text, number in document["model"]["vocab"].items()}
        cases = ((at, text) for at, text in _changed(document) if at.count(".vocab.") == 0)
    else:
        cases = _changed(document)
    return _failures(iter(cases), path.write_text, read)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("generation_config.json", {"eos_token_id": [0, 7], "temperature": 0.5, "top_k": 4}),
        (
            "tokenizer_config.json",
            {"eos_token": {"content": "a"}, "chat_template": [{"name": "default", "template": "b"}]},
        ),
        ("special_tokens_map.json", {"bos_token": {"content": "a"}}),
        ("model.safetensors.index.json", {"weight_map": {"lm_head.weight": "model.safetensors"}}),
    ],
)
def test_any_change_of_a_file_beside_it_is_read_or_refused(
    name: str, document: Any, tmp_path: Path, bounded: Callable[..., Failures]
) -> None:
    make_hugging_face(tmp_path / "model", vocab_size=512)
    (tmp_path / "model" / name).write_text(json.dumps(document), encoding="utf-8")
    assert bounded(_beside, tmp_path / "model", name) == []


def _safetensors(path: Path) -> Failures:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    kept = {"__metadata__": {"format": "pt"}, **dict(list(header.items())[-1:])}

    def cases() -> Iterator[tuple[str, str]]:
        yield from _changed(kept)
        name, entry = list(kept.items())[-1]
        for shape in ([2**32, 2**32], [2**63, 2], [0, 2**62], [1] * 100, [0] * 70):
            yield f"{shape}", json.dumps({name: {**entry, "shape": shape, "data_offsets": [0, 0]}})

    def write(text: str) -> None:
        path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + content[8 + length :])

    def read() -> None:
        for tensor in read_tensors(path).values():
            assert tensor.data.nbytes <= len(content)
            tensor.to_float32()

    return _failures(cases(), write, read)


def test_any_change_of_a_header_of_tensors_is_read_or_refused(
    tmp_path: Path, bounded: Callable[..., Failures]
) -> None:
    make_checkpoint(tmp_path, vocab_size=300, num_hidden_layers=1)
    assert bounded(_safetensors, tmp_path / "rank0.safetensors") == []


SIZES = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    **{f"llama.{name}": size for name, size in SIZES.items()},
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": 16,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e4,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 2.0,
    "llama.rope.scaling.original_context_length": 64,
    "general.alignment": 32,
    "split.count": 1,
    **byte_pairs(300),
    "tokenizer.chat_template": "{{ messages }}",
}
TENSORS: dict[str, Any] = {
    "token_embd.weight": np.zeros((300, 32), np.float32),
    "blk.0.attn_q.weight": np.zeros((32, 32), np.float32),
    "rope_freqs.weight": np.ones(8, np.float32),
}
OTHERS = (
    *(0, 1, 2**31, 2**32 - 1, 2**62, -1, True, "", "x", [], ["a"], 0.0, -1.0, 1e30),
    *(float("inf"), float("nan"), np.zeros(3, np.float32), np.arange(3, dtype=np.int32)),
)


def _read_gguf(path: Path) -> None:
    file = open_gguf(path)
    tokenizer_of(file)
    parse_network_config(json.loads(json.dumps(config_of(file))), path)
    for tensor in tensors_of(file).values():
        assert tensor.data.shape == tensor.shape


def _gguf(folder: Path) -> Failures:
    def cases() -> Iterator[tuple[str, tuple[Any, Any]]]:
        for key in GGUF:
            for value in OTHERS:
                yield f"{key}={value!r:.30}", ({**GGUF, key: value}, TENSORS)
        for key, tensor in TENSORS.items():
            for shape in ((1,), (32,), (2, 2, 2), (1 << 14,)):
                yield f"{key} {shape}", (GGUF, {**TENSORS, key: np.full(shape, np.nan, tensor.dtype)})

    path = folder / "changed.gguf"
    return _failures(cases(), lambda content: write_gguf(path, *content), lambda: _read_gguf(path))


def test_any_change_of_a_gguf_header_is_read_or_refused(
    tmp_path: Path, bounded: Callable[..., Failures]
) -> None:
    assert bounded(_gguf, tmp_path) == []


def _with_token(token: str) -> dict[str, Any]:
    found = pieces()
    found["tokenizer.ggml.tokens"] += [token, *(f"[{number}]" for number in range(26))]
    for name in ("token_type", "scores"):
        values = found[f"tokenizer.ggml.{name}"]
        found[f"tokenizer.ggml.{name}"] = np.append(values, np.ones(27, values.dtype))
    return found


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "layers": ({"llama.block_count": 300_000_000}, {}, "block_count=300000000"),
    "layers that are not there": (
        {"llama.block_count": 4096},
        {},
        "block_count=4096, and the tensors are of 1 layers",
    ),
    "heads": ({"llama.attention.key_length": 2**32 - 1}, {}, "attention.key_length=4294967295"),
    "context": ({"llama.context_length": 2**32 - 1}, {}, "context_length=4294967295"),
    "odd rows": (
        {},
        {"blk.0.attn_q.weight": np.zeros((6, 32), np.float32)},
        "attn_q.weight has 6 rows, no pairs for 2 heads",
    ),
    "tensor without a name": ({}, {"": np.zeros(32, np.float32)}, "the tensor '' has no place"),
    "long token": (_with_token("x" * 400_000), {}, "a token has 400000 characters"),
    "many texts": ({f"general.{number}": [""] * (1 << 20) for number in range(3)}, {}, "1048576 items"),
}


def _hostile(folder: Path, name: str) -> Failures:
    metadata, tensors, words = HOSTILE[name]
    path = write_gguf(folder / "hostile.gguf", {**GGUF, **metadata}, {**TENSORS, **tensors})
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    try:
        _read_gguf(path)
    except CheckpointError as error:
        return [] if words in str(error) and error.message else [str(error)]
    return ["it was read"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_asks_for_everything_is_refused(
    name: str, tmp_path: Path, bounded: Callable[..., Failures]
) -> None:
    assert bounded(_hostile, tmp_path, name) == []


def test_a_name_that_counts_no_parts_is_that_of_one_file(tmp_path: Path) -> None:
    for count in ("00000", "99999"):
        path = write_gguf(tmp_path / f"x-00001-of-{count}.gguf", GGUF, TENSORS)
        assert open_gguf(path).tensors.keys() == TENSORS.keys()


def test_a_tokenizer_whose_pattern_backtracks_without_end_is_refused(tmp_path: Path) -> None:
    path = make_hugging_face(tmp_path / "model") / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    pattern = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**document, "pre_tokenizer": pattern}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a valid tokenizer"):
        read_tokenizer(path)
