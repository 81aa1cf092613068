"""Tests of downloads: which files an id means, and what happens when one breaks off."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from threading import Thread

import httpx
import pytest
import yaml
from huggingface_hub.utils import WeakFileLock

from build.gguf.file import open_gguf
from build.hub.checkpoint_id import HubCheckpoint
from build.hub.transfer import Blob, download
from build.recipe import load_recipe
from pipelines.demo.own_pair import named_checkpoint
from pipelines.manifest import read_manifest, sha256_file
from pipelines.time_left import TimeLeft, duration
from tests.golden.families import save_family
from tests.support.gguf_files import convert, write_gguf
from tests.support.hub_server import Hub, HubRepository
from tests.unit.hub.conftest import PAIR, Outcome

Try = Callable[..., Outcome]


def begins(hub: Hub) -> list[int]:
    """Return the first byte of each download."""
    return [int(re.findall(r"\d+", each.range or "")[0]) for each in hub.downloads()]


def cached(tmp_path: Path) -> list[str]:
    """Return the weights that the checkpoint of the target has."""
    return sorted(path.name for path in tmp_path.glob("cache/hub/models--org--Big/snapshots/*/*.safetensors"))


@pytest.fixture
def blob(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blob:
    """Return the target's weights, of which each thousand bytes are written when they arrive, not 10 MB."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    content = hub.repositories["org/Big"].files["model.safetensors"]
    url = f"{hub.urls['127.0.0.1']}/org/Big/resolve/main/model.safetensors"
    sha256 = hashlib.sha256(content).hexdigest()
    return Blob("model.safetensors", url, len(content), sha256, tmp_path / "blob", tmp_path / "lock")


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_broken_connection_is_taken_up_by_range(blob: Blob, hub: Hub, ignores_ranges: bool) -> None:
    hub.ignores_ranges = ignores_ranges
    hub.breaks_after = [100_000, 50_000]
    arrived: list[int] = []
    download(blob, {}, arrived.append, print)
    first, second, third = begins(hub)
    assert first == 0 < second <= 100_000 and (ignores_ranges or second < third <= second + 50_000)
    assert ignores_ranges or sum(arrived) == blob.size
    assert sha256_file(blob.path) == blob.sha256 and not blob.part.exists()


def test_another_run_goes_on_where_it_stopped(blob: Blob, hub: Hub) -> None:
    hub.breaks_after = [100_000, *[0] * 5]
    with pytest.raises(httpx.RemoteProtocolError):
        download(blob, {}, lambda count: None, print)
    again = len(begins(hub))
    assert 0 < blob.part.stat().st_size <= 100_000 and not blob.path.exists()
    assert blob.bytes_left == blob.size - blob.part.stat().st_size
    download(blob, {}, lambda count: None, print)
    assert 0 < begins(hub)[again] <= 100_000 and len(begins(hub)) == again + 1
    assert sha256_file(blob.path) == blob.sha256


def test_content_that_is_not_what_was_announced(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.is_damaging = True
    done = try_pair()
    assert done.code == 1
    assert "model.safetensors is not what the hub announced" in done.error and "SHA-256" in done.error
    assert cached(tmp_path) == [] and not list(tmp_path.rglob("*.incomplete"))
    hub.is_damaging = False
    assert try_pair().code == 0


def test_a_download_stops_where_the_announced_size_is_passed(try_pair: Try, hub: Hub, tmp_path: Path) -> None:
    hub.num_added = 1 << 26
    size = len(hub.repositories["org/Big"].files["model.safetensors"])
    done = try_pair()
    assert done.code == 1
    assert "model.safetensors is not what the hub announced" in done.error
    assert f"more than {size} bytes" in done.error
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_huge_file_of_settings_is_not_begun(try_pair: Try, hub: Hub) -> None:
    hub.repositories["org/Big"].sizes["tokenizer.json"] = 1 << 40
    done = try_pair()
    assert done.code == 1
    assert f"tokenizer.json has {1 << 40} bytes, and a file of settings at most" in done.error
    assert not any("resolve" in each.path for each in hub.asked)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_of_settings_without_an_end_is_cut_off(try_pair: Try, hub: Hub, name: str) -> None:
    hub.endless = name
    done = try_pair()
    assert done.code == 1
    assert re.search(rf"the hub sends what is no file of settings, \S+/{name}: \d+ bytes", done.error)


def test_what_a_mirror_compresses_unasked_is_not_unpacked(try_pair: Try, hub: Hub) -> None:
    hub.compresses = True
    done = try_pair()
    assert done.code == 1 and "Content-Encoding: gzip" in done.error


def test_a_download_says_that_it_waits_for_another_program(tmp_path: Path) -> None:
    blob = Blob("model.safetensors", "", 5, "", tmp_path / "blob", tmp_path / "blob.lock")
    lines = Queue[str]()
    waiting = Thread(target=download, args=(blob, {}, print, lines.put), daemon=True)
    with WeakFileLock(blob.lock):
        waiting.start()
        assert lines.get(timeout=120) == "model.safetensors: another program downloads it; waiting for that"
        assert waiting.is_alive()
        blob.path.write_bytes(b"bytes")  # the other program's
    waiting.join(120)
    assert not waiting.is_alive() and lines.empty()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    sections = {role: {"checkpoint": name} for role, name in zip(("target", "draft"), PAIR, strict=True)}
    path = tmp_path / "hub.yaml"
    path.write_text(yaml.safe_dump({"name": "hub", "serving": {"max_seq_len": 256}, **sections}))
    return path


@pytest.mark.long
def test_preflight_needs_no_weights(
    program: Callable[..., Outcome], recipe: Path, hub: Hub, tmp_path: Path
) -> None:
    done = program("build.preflight", "--recipe", str(recipe), "--engines", str(tmp_path / "engines"))
    assert done.code == 0, done.error
    assert "2 files of weights are not downloaded yet" in done.shown
    assert hub.downloads() == []


def test_engines_name_the_commit_that_they_are_compiled_from(
    program: Callable[..., Outcome], recipe: Path, hub: Hub, tmp_path: Path
) -> None:
    arguments = ("--recipe", str(recipe), "--engines", str(tmp_path / "engines"))
    done = program("build.engines", *arguments)
    assert done.code == 0, done.error
    manifest = read_manifest(Path(done.result["target"]))
    assert manifest is not None
    assert manifest["checkpoint"] == f"hf://org/Big@{hub.repositories['org/Big'].commit}"
    done = program("build.engines", *arguments, HF_HUB_OFFLINE="1")
    assert done.code == 0 and done.result["built"] == [], done.error


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_that_is_left_is_told_every_few_seconds() -> None:
    clock, lines = Clock(), list[str]()
    progress = TimeLeft(100, lines.append, lambda done: f"{done:.0f} of 100", clock)
    for _ in range(100):
        clock.now_s += 1
        progress.advance(1)
    assert lines[0] == "5 of 100, about 95 s left" and lines[-1] == "95 of 100, about 5 s left"
    assert len(lines) == 19
    assert (duration(119), duration(125)) == ("119 s", "2 min")


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
