"""Tests of GGUF files that are damaged, hostile, split, or change while they are read."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build.gguf.file import GgufFile, open_gguf
from build.gguf.network import config_of
from build.gguf.tokenizer import tokenizer_of
from build.gguf.translate import translate
from build.networks.source import open_network
from pipelines.errors import CheckpointError
from tests.golden.families import save_family
from tests.support.gguf_files import Stored, byte_pairs, convert, entry_of, header_of, write_gguf

ARCHITECTURE = {"general.architecture": "qwen2"}
ROW = np.arange(32, dtype=np.float32)
HUGE = 2**62


def _with(entries: list[bytes], metadata: Any = ARCHITECTURE, body: int = 256) -> bytes:
    header = header_of(metadata, entries)
    return header + b"\0" * (-len(header) % 32 + body)


def _counts(tensors: int, values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + b"\0" * 64


def _first_value(kind: int, value: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", kind) + value + b"\0" * 64


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "byte 0 of 0"),
    "foreign": (b"PK\3\4" + b"\0" * 64, "does not begin with GGUF"),
    "first version": (b"GGUF" + struct.pack("<III", 1, 0, 0), "version 1"),
    "newer": (header_of({}, [], version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648, in the other byte order"),
    "truncated": (_with([])[:40], "bytes are wanted"),
    "many tensors": (_counts(HUGE, 0), f"{HUGE} items"),
    "many values": (_counts(0, HUGE), f"{HUGE} items"),
    "huge text": (_first_value(8, struct.pack("<Q", HUGE)), f"{HUGE} bytes are wanted"),
    "text above the limit": (_first_value(8, struct.pack("<Q", 2**24 + 1)), "16777217 bytes are wanted"),
    "huge array": (_first_value(9, struct.pack("<IQ", 4, HUGE)), f"{HUGE} items"),
    "huge array of texts": (_first_value(9, struct.pack("<IQ", 8, HUGE)), f"{HUGE} items"),
    "array of arrays": (_first_value(9, struct.pack("<IQ", 9, 1)), "a value of type 9"),
    "unknown value": (_first_value(77, b""), "a value of type 77"),
    "no text": (_first_value(8, struct.pack("<Q", 2) + b"\xff\xfe"), "utf-8"),
    "value twice": (
        header_of(ARCHITECTURE, []).replace(struct.pack("<QQ", 0, 1), struct.pack("<QQ", 0, 2))
        + header_of(ARCHITECTURE, [])[24:],
        "general.architecture is there twice",
    ),
    "alignment": (_with([], {"general.alignment": 12}), "general.alignment=12"),
    "alignment is a text": (_with([], {"general.alignment": "32"}), "general.alignment='32'"),
    "no dimensions": (_with([entry_of("t", (), 0, 0)]), "t has 0 dimensions"),
    "five dimensions": (_with([entry_of("t", (1,) * 5, 0, 0)]), "t has 5 dimensions"),
    "beyond the file": (_with([entry_of("t", (8,), 0, 1024)]), "the tensors end at byte"),
    "huge offset": (_with([entry_of("t", (8,), 0, HUGE)]), "the tensors end at byte"),
    "huge shape": (_with([entry_of("t", (HUGE, HUGE, HUGE, HUGE), 0, 0)]), "the tensors end at byte"),
    "empty tensor": (_with([entry_of("t", (0, 8), 0, 0)]), "no whole number of blocks"),
    "half a block": (_with([entry_of("t", (1, 48), 8, 0)]), "Q8_0 .1, 48. .* no whole number of blocks"),
    "overlapping": (_with([entry_of("t", (16,), 0, 0), entry_of("u", (8,), 0, 32)]), "u: .*overlaps"),
    "crooked": (_with([entry_of("t", (8,), 0, 8)]), "not at a multiple of 32"),
    "tensor twice": (_with([entry_of("t", (8,), 0, 0), entry_of("t", (8,), 0, 32)]), "t is there twice"),
    "refused types": (
        _with([entry_of("t", (256,), 10, 0), entry_of("u", (256,), 23, 96)]),
        "not read: IQ4_XS, Q2_K;",
    ),
    "unknown type": (_with([entry_of("t", (256,), 99, 0)]), "type 99; supported: F32"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_unreadable_file_is_refused_before_anything_is_allocated(name: str, tmp_path: Path) -> None:
    content, words = DAMAGED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=words) as caught:
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.remedy and str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="does not exist"):
            open_gguf(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a whole file, of which most bytes are header."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1}
    metadata = {
        "general.architecture": "llama",
        **{f"llama.{name}": size for name, size in sizes.items()},
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e4,
        **byte_pairs(280),
        "tokenizer.chat_template": "{{ messages }}",
    }
    tensors: dict[str, Any] = {"token_embd.weight": Stored("F16", (280, 32), b"\0" * 280 * 64)}
    tensors |= {"blk.0.attn_norm.weight": ROW, "rope_freqs.weight": np.ones(8, np.float32)}
    return write_gguf(path, metadata, tensors)


def test_a_file_that_lost_its_layers_is_refused(small: Path, tmp_path: Path) -> None:
    content = bytearray(small.read_bytes())
    content[8] = 1  # the number of tensors
    path = tmp_path / "lost.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="the layers have no weights"):
        config_of(open_gguf(path))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_change_of_a_header_does_more_than_a_refusal(data: st.DataObject, small: Path) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(4, 6000))
        width = data.draw(st.sampled_from((1, 4, 8)))
        value = data.draw(st.sampled_from((0, 1, 2**31, 2**63)) | st.integers(0, 2**64 - 1))
        content[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    path = small.with_name("changed.gguf")
    path.write_bytes(content[: data.draw(st.integers(20, len(content)) | st.just(len(content)))])
    try:
        file = open_gguf(path)
        tokenizer_of(file)
        config_of(file)
    except CheckpointError as error:
        assert len(str(error)) < 2000


def _split(folder: Path, count: int, **changes: Any) -> list[Path]:
    """Write a file in parts, as ``llama-gguf-split`` does."""
    save_family("qwen2", folder / "checkpoint")
    whole = open_gguf(convert(folder / "checkpoint", folder / "whole.gguf"))
    tensors = {name: tensor.read() for name, tensor in whole.tensors.items()}
    paths = [folder / f"part-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        own = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors), **changes}
        share = dict(list(tensors.items())[number::count])
        write_gguf(path, own if number else {**whole.metadata, **own}, share)
    return paths


def test_all_parts_of_a_file_are_read_by_the_name_of_any(tmp_path: Path) -> None:
    paths = _split(tmp_path, 3)
    whole = open_gguf(tmp_path / "whole.gguf")
    for path in paths:
        found: GgufFile = open_gguf(path)
        assert config_of(found) == config_of(whole)
        assert found.tensors.keys() == whole.tensors.keys()
    (directory,) = {translate(path, tmp_path / "cache") for path in paths}
    of_whole = translate(tmp_path / "whole.gguf", tmp_path / "cache")
    one, other = (open_network(each).read().layer(1) for each in (directory, of_whole))
    assert np.array_equal(one.proj.to_float32(), other.proj.to_float32())


def test_a_missing_or_foreign_part_is_refused(tmp_path: Path) -> None:
    paths = _split(tmp_path, 3)
    second = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(
        CheckpointError, match=r"not the part that its name says: split\.no=2, split\.count=3"
    ):
        open_gguf(paths[0])
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"part-00002-of-00003\.gguf does not exist; 1 of 3"):
        open_gguf(paths[2])
    paths[1].write_bytes(second)
    with pytest.raises(CheckpointError, match=r"not the part that its name says: split\.no=1"):
        open_gguf(paths[1].rename(tmp_path / "alone.gguf"))
    short = _split(tmp_path / "short", 2, **{"split.tensors.count": 1000})
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count=1000, and the parts have \d+ tensors"):
        open_gguf(short[0])


def test_a_file_is_translated_again_only_when_it_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_family("qwen2", tmp_path / "checkpoint")
    path = convert(tmp_path / "checkpoint", tmp_path / "network.gguf")
    first = translate(path, tmp_path / "cache")
    assert "network.gguf: qwen2, weights by type: F32 2.0 million" in capsys.readouterr().out
    assert translate(path, tmp_path / "cache") == first and not capsys.readouterr().out
    os.utime(path, (1, 1))
    second = translate(path, tmp_path / "cache")
    assert second != first and second.is_dir() and not first.exists()


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    save_family("qwen2", tmp_path / "checkpoint")
    path = convert(tmp_path / "checkpoint", tmp_path / "network.gguf")
    network = open_network(translate(path, tmp_path / "cache")).read()
    os.utime(path, (1, 1))
    with pytest.raises(CheckpointError, match="changed while it was read"):
        network.layer(0)
    network = open_network(translate(path, tmp_path / "cache")).read()
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        network.layer(0)
