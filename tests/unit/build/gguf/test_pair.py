"""Tests of pairs of which one or both are GGUF files: recipes, preflight, engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from build.checkpoints.tokenizer_file import CORPUS, find_end_ids, load_tokenizer, read_tokenizer
from build.engines import build_engines
from build.gguf.file import open_gguf
from build.gguf.translate import translate
from build.networks.source import open_network
from build.own_pair import write_recipe
from build.preflight import check_recipe
from build.preflight import main as preflight
from build.recipe import load_recipe
from build.tensorrt_llm.model_config import read_model_config
from pipelines.demo.own_pair import named_checkpoint
from pipelines.errors import CheckpointError
from pipelines.manifest import sha256_json
from tests.golden.families import save_family
from tests.support.gguf_files import Stored, convert, write_gguf
from tools.published import PUBLISHED, Published

MEMORY = 20e9


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("build.recipe.TRANSLATED", tmp_path / "translated")
    return tmp_path / "translated"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    made = []
    for role, family in (("Big-q8_0", "qwen2"), ("small", "olmo2")):
        save_family(family, tmp_path / family)
        path = convert(tmp_path / family, tmp_path / f"{role}.gguf", **{"tokenizer.chat_template": "{{ 1 }}"})
        made.append(path)
    return made[0], made[1]


def test_two_files_become_a_recipe_and_engines(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lines = list[str]()
    path = write_recipe(*map(str, pair), tmp_path / "mine.yaml", "auto", 2048, MEMORY, lines.append)
    recipe = load_recipe(path)
    assert recipe.name == "big"
    assert not recipe.serving.default_sampling.values, "a file whose family recommends nothing"
    assert (recipe.target.checkpoint, recipe.draft.checkpoint) == tuple(map(str, pair))
    assert recipe.target.quantization == "auto"
    assert recipe.serving.max_seq_len == 512 and "weights, target" in "".join(lines)
    assert write_recipe(*map(str, pair), path, "auto", 2048, 0) == path, "the recipe is kept"
    built = build_engines(recipe, tmp_path / "engines", lines.append)
    assert built["built"] == ["draft", "target"]
    target = Path(built["target"])
    assert json.loads((target / "chat.json").read_text())["templates"] == {"default": "{{ 1 }}"}
    assert build_engines(recipe, tmp_path / "engines", lines.append)["built"] == []
    assert preflight(["--recipe", str(path), "--engines", str(tmp_path / "engines")]) == 0


@pytest.mark.parametrize(
    ("file", "name", "values"),
    [
        (
            "qwen2.5-coder-1.5b-instruct-q4_k_m",
            "qwen2.5-coder-1.5b-instruct",
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
        ),
        (
            "Meta-Llama-3.1-8B-Instruct-Q8_0-00001-of-00001",
            "meta-llama-3.1-8b-instruct",
            {"temperature": 0.6, "top_p": 0.9},
        ),
        (
            "google_gemma-3-4b-it-bf16",
            "google-gemma-3-4b-it",
            {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
        ),
        ("DeepSeek-R1-Distill-Qwen-7B-IQ4_NL", "deepseek-r1-distill-qwen-7b", {}),
    ],
)
def test_a_file_is_sampled_as_its_publisher_recommends_and_what_a_user_edits_is_kept(
    file: str, name: str, values: dict[str, float], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    big = str(pair[0].rename(tmp_path / f"{file}.gguf"))
    path = write_recipe(big, str(pair[1]), tmp_path / "mine.yaml", "auto", 64, MEMORY)
    recipe = load_recipe(path)
    assert (recipe.name, recipe.serving.default_sampling.values) == (name, values)
    document = yaml.safe_load(path.read_text())
    document["serving"]["default_sampling"] = {"temperature": 0.2}
    path.write_text(yaml.safe_dump(document))
    assert write_recipe(big, str(pair[1]), path, "auto", 64, MEMORY) == path
    assert load_recipe(path).serving.default_sampling.values == {"temperature": 0.2}


def test_the_bits_of_a_file_are_said_in_one_way(pair: tuple[Path, Path], tmp_path: Path) -> None:
    file, tensors = open_gguf(pair[0]), dict[str, Any]()
    for name, stored in file.tensors.items():
        kind, num_bytes = ("Q8_0", 34) if "ffn_down" in name else ("Q4_0", 18)
        zeros = bytes(int(np.prod(stored.shape)) // 32 * num_bytes)
        tensors[name] = Stored(kind, stored.shape, zeros) if len(stored.shape) == 2 else stored.read()
    write_gguf(pair[0], file.metadata, tensors)
    lines = list[str]()
    path = write_recipe(*map(str, pair), tmp_path / "mine.yaml", "auto", 64, MEMORY, lines.append)
    assert "target: the file's own 4 to 8 bits, unchanged" in lines
    assert load_recipe(path).target.quantization == "auto"


def test_a_file_beside_a_directory_is_a_pair(pair: tuple[Path, Path], tmp_path: Path, cache: Path) -> None:
    directory = tmp_path / "olmo2"
    both = check_recipe(load_recipe(write_recipe(*map(str, pair), tmp_path / "a.yaml", "int8", 64, MEMORY)))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(both[0].tokenizer_path.with_name(name), directory / name)
    path = write_recipe(str(pair[0]), str(directory), tmp_path / "b.yaml", "int8", 64, MEMORY)
    draft, target = check_recipe(load_recipe(path))
    assert draft.network.directory == directory and target.network.directory.parent == cache
    assert draft.token_map is None, "one tokenizer"


def test_the_weights_of_a_file_are_not_copied(pair: tuple[Path, Path], tmp_path: Path, cache: Path) -> None:
    recipe = load_recipe(write_recipe(*map(str, pair), tmp_path / "mine.yaml", "int8", 64, MEMORY))
    build_engines(recipe, tmp_path / "engines", lambda line: None)
    (target,) = cache.glob("Big-q8_0-*")
    assert sum(path.lstat().st_size for path in target.iterdir()) < pair[0].stat().st_size / 10


def test_tensorrt_llm_reads_no_gguf_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(*map(str, pair), tmp_path / "mine.yaml", "int8", 64, MEMORY))
    with pytest.raises(CheckpointError, match="a GGUF file, and TensorRT-LLM reads none"):
        read_model_config(recipe.target.checkpoint_directory())


def test_try_takes_a_file_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_checkpoint("models/big.gguf") == str(tmp_path / "models/big.gguf")
    assert named_checkpoint("models/big") == "hf://models/big"


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
