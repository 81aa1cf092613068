"""Tests that all end tokens reach engines and model repository, from the file that takes precedence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.tokenizer_file import find_end_ids, read_tokenizer
from build.engines import build_engines
from pipelines.errors import CheckpointError
from pipelines.executor.engine_config import EngineConfig
from pipelines.manifest import EngineFiles, checked_engine
from tests.support.checkpoints import make_checkpoint
from tests.support.hugging_face_checkpoints import pair_recipe
from tests.support.tiny_engines import added_token

# Those of meta-llama/Llama-3.1-8B-Instruct, renumbered for a small tokenizer.
LLAMA3_TOKENS = {"<|begin_of_text|>": 10, "<|end_of_text|>": 11, "<|eom_id|>": 12, "<|eot_id|>": 13}


def checkpoint(
    directory: Path,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    added: dict[str, int] | None = None,
) -> Path:
    directory.mkdir(exist_ok=True)
    tokens = LLAMA3_TOKENS if added is None else added
    tokenizer = {
        "added_tokens": [added_token(content, number) for content, number in tokens.items()],
        "model": {"type": "BPE", "vocab": {chr(97 + number): number for number in range(10)}, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return directory


def end_ids(directory: Path, vocab_size: int = 64) -> tuple[int, ...]:
    return find_end_ids(directory, read_tokenizer(directory / "tokenizer.json"), vocab_size)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 11}, {"eos_token_id": [11, 12, 13]}, (11, 12, 13)),
        ({"eos_token_id": [11, 12, 13]}, {"eos_token_id": 13}, (13,)),
        ({"eos_token_id": [11, 12, 13]}, None, (11, 12, 13)),
        ({"eos_token_id": 0}, {"temperature": 0.6}, (0,)),
        ({"eos_token_id": 11}, {"eos_token_id": None}, (11,)),
        ({"eos_token_id": 11}, {"eos_token_id": []}, (11,)),
        ({"end_ids": [13, 11]}, None, (13, 11)),
        ({"end_id": 12}, None, (12,)),
        ({"eos_token_id": [13, 13, 11]}, None, (13, 11)),
        ({}, None, (11, 13, 12)),  # every known token of the tokenizer
    ],
)
def test_the_first_place_that_names_any_has_the_say(
    config: dict[str, Any], generation: dict[str, Any] | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert end_ids(checkpoint(tmp_path, config, generation)) == expected


@pytest.mark.parametrize("token", ["<|eot_id|>", {"content": "<|eot_id|>", "special": True}])
def test_the_tokenizers_own_end_counts_too(token: Any, tmp_path: Path) -> None:
    """Checkpoints tuned for chat end a turn with it, and may keep the base model's ``config.json``."""
    directory = checkpoint(tmp_path, {"eos_token_id": 11})
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": token}), encoding="utf-8")
    assert end_ids(directory) == (11, 13)
    path.write_text('{"eos_token": "<|unknown|>"}', encoding="utf-8")
    assert end_ids(directory) == (11,)


@pytest.mark.parametrize("value", ["2", True, -1, [11, None], {"id": 2}])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_invalid_end_token_is_refused_by_the_files_name(value: Any, name: str, tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, {"eos_token_id": 11}, {})
    (directory / name).write_text(json.dumps({"eos_token_id": value}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="neither a token id nor a list") as caught:
        end_ids(directory)
    assert str(directory / name) in caught.value.message
    assert caught.value.message and caught.value.remedy


@pytest.mark.parametrize(
    ("config", "added", "words"),
    [({}, {}, "10 tokens: none in"), ({"eos_token_id": [11, 14]}, LLAMA3_TOKENS, "14 tokens: 11, 14 in")],
)
def test_no_end_and_an_end_outside_the_tokenizer_are_refused(
    config: dict[str, Any], added: dict[str, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="has no valid end tokens") as caught:
        end_ids(checkpoint(tmp_path, config, added=added))
    assert words in caught.value.message


def test_a_special_token_with_the_highest_id_ends_a_text_if_the_network_has_it(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, {"eos_token_id": 15}, added={**LLAMA3_TOKENS, "<|EOT|>": 15})
    assert end_ids(directory, vocab_size=16) == (15,)
    with pytest.raises(CheckpointError, match="has no valid end tokens among 15 tokens: 15 in"):
        end_ids(directory, vocab_size=15)


def test_other_end_tokens_make_another_engine(tmp_path: Path) -> None:
    for role in ("draft", "target"):
        make_checkpoint(tmp_path / role, num_hidden_layers=1)
    recipe = pair_recipe(tmp_path, *({"checkpoint": str(tmp_path / role)} for role in ("draft", "target")))

    def built() -> Path:
        return Path(build_engines(recipe, tmp_path / "engines", lambda line: None)["target"])

    before = built()
    (tmp_path / "target" / "generation_config.json").write_text('{"eos_token_id": [0, 7, 9]}')
    after = built()
    assert before != after
    for engine, expected in ((before, (0,)), (after, (0, 7, 9))):
        assert EngineConfig.read(EngineFiles(engine)).end_ids == expected
        assert tuple(checked_engine(engine).manifest["end_ids"]) == expected
