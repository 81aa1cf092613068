"""Tests of GGUF files on the hub: which file an id means, and what is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build.gguf.file import open_gguf
from build.hub.checkpoint_id import HubCheckpoint
from build.recipe import load_recipe
from pipelines.demo.own_pair import named_checkpoint
from tests.golden.families import save_family
from tests.support.gguf_files import convert, write_gguf
from tests.support.hub_server import Hub, HubRepository
from tests.unit.hub.conftest import Outcome

Try = Callable[..., Outcome]
BIG, SMALL = "hf://org/Big-GGUF", "hf://org/small-GGUF"
PARTS = [f"Big-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]


@pytest.fixture
def files(hub: Hub, tmp_path: Path) -> dict[str, bytes]:
    """Put files on the hub; returns those of the target."""
    save_family("qwen2", tmp_path / "qwen2")
    path = convert(tmp_path / "qwen2", tmp_path / "made.gguf")
    whole = open_gguf(path)
    tensors = list((name, tensor.read()) for name, tensor in whole.tensors.items())
    found = {name: path.read_bytes() for name in ("Big-Q8_0.gguf", "Big-F16.gguf", "mmproj-F16.gguf")}
    for number, name in enumerate(PARTS):
        own = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        share = dict(tensors[number::2])
        write_gguf(tmp_path / name, own if number else {**whole.metadata, **own}, share)
        found[name] = (tmp_path / name).read_bytes()
    hub.repositories["org/Big-GGUF"] = HubRepository({**found, "README.md": b"files"})
    hub.repositories["org/small-GGUF"] = HubRepository({"small-q4_0.gguf": path.read_bytes()})
    return hub.repositories["org/Big-GGUF"].files


def _names(hub: Hub) -> set[str]:
    return {each.path.rpartition("/")[2] for each in hub.downloads()}


def test_a_quantization_names_a_file_that_the_recipe_keeps(
    try_pair: Try, hub: Hub, files: dict[str, bytes]
) -> None:
    done = try_pair(f"{BIG}:q8_0", f"{SMALL}:small-q4_0.gguf")
    assert done.code == 0, done.error
    recipe, commits = load_recipe(done.result["recipe"]), hub.repositories
    assert recipe.target.checkpoint == f"{BIG}:Big-Q8_0.gguf@{commits['org/Big-GGUF'].commit}"
    assert recipe.draft.checkpoint == f"{SMALL}:small-q4_0.gguf@{commits['org/small-GGUF'].commit}"
    assert recipe.name == "big"
    assert _names(hub) == {"Big-Q8_0.gguf", "small-q4_0.gguf"}
    assert "org/Big-GGUF: downloading" in done.shown and "Big-Q8_0.gguf: qwen2" in done.shown
    hub.is_down = True
    done = try_pair(f"{BIG}:q8_0", f"{SMALL}:small-q4_0.gguf", HF_HUB_OFFLINE="1")
    assert done.code == 0 and "the recipe exists and is kept" in done.shown, done.error


@pytest.mark.long
def test_all_parts_of_a_split_file_are_downloaded(try_pair: Try, hub: Hub, files: dict[str, bytes]) -> None:
    hub.breaks_after = [3000]
    done = try_pair(f"{BIG}:Q4_K_M", f"{BIG}:q4_k_m")
    assert done.code == 0, done.error
    assert _names(hub) == set(PARTS)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        pytest.param("q5_k_m", "has no GGUF files that q5_k_m means: Big-F16.gguf", marks=pytest.mark.long),
        pytest.param("f16", "has 2 GGUF files that f16 means: Big-F16.gguf, mmproj", marks=pytest.mark.long),
        ("Q4_K_M", "lacks a part of a split file: Big-Q4_K_M-00002-of-00002.gguf"),
    ],
)
def test_an_id_that_means_no_whole_file_is_refused(
    file: str, words: str, try_pair: Try, hub: Hub, files: dict[str, bytes]
) -> None:
    del files[PARTS[1]]
    done = try_pair(f"{BIG}:{file}", f"{SMALL}:q4_0")
    assert done.code == 1 and words in done.error, done.error
    assert hub.downloads() == []


def test_a_repository_of_files_asks_for_one_of_them(try_pair: Try, files: dict[str, bytes]) -> None:
    done = try_pair(BIG, SMALL)
    assert "has no config.json" in done.error and f"name a GGUF file: {BIG}:q4_k_m" in done.error


def test_names_of_files_are_part_of_an_id() -> None:
    text = "hf://org/Big-GGUF:sub/Big-Q4_K_M.gguf@main"
    parsed = HubCheckpoint.parse(text)
    assert parsed is not None and str(parsed) == text and parsed.file == "sub/Big-Q4_K_M.gguf"
    assert named_checkpoint("org/Big-GGUF:q4_k_m") == "hf://org/Big-GGUF:q4_k_m"
    asked = HubCheckpoint("org/Big", file="q4_0")
    for name, fits in (("Big-Q4_0.gguf", True), ("big.q4_0.gguf", True), ("Big-Q4_0_4_4.gguf", False)):
        assert asked.means(name) == fits
    assert not asked.means(None) and HubCheckpoint("org/Big").means(None)
