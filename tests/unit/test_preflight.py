"""A pair that cannot work together is refused before anything is compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.preflight import check_recipe
from build.recipe import Recipe, parse_recipe
from build.tokenizer_file import read_tokenizer
from pipelines.errors import CheckpointError, DraftproofError, IncompatiblePairError, RecipeError
from tests.fixtures_checkpoints import make_checkpoint


def recipe_of(tmp_path: Path, **serving: Any) -> Recipe:
    raw = {
        "name": "test",
        "target": {"checkpoint": str(tmp_path / "target")},
        "draft": {"checkpoint": str(tmp_path / "draft")},
        "serving": serving,
    }
    return parse_recipe(raw, tmp_path / "test.yaml")


def make_pair(tmp_path: Path, draft: dict[str, Any] | None = None, **target: Any) -> None:
    make_checkpoint(tmp_path / "target", **target)
    make_checkpoint(tmp_path / "draft", **{"num_hidden_layers": 1, **(draft or {})})


def test_a_pair_that_fits(tmp_path: Path) -> None:
    make_pair(tmp_path)
    draft, target = check_recipe(recipe_of(tmp_path))
    assert draft.end_ids == target.end_ids == (0,)
    assert draft.tokenizer == target.tokenizer


def test_layout_of_the_tokenizer_file_does_not_matter(tmp_path: Path) -> None:
    make_pair(tmp_path)
    path = tmp_path / "draft" / "tokenizer.json"
    document = {**json.loads(path.read_text(encoding="utf-8")), "padding": {"strategy": "BatchLongest"}}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    check_recipe(recipe_of(tmp_path))


def test_end_id_is_found_in_the_tokenizer(tmp_path: Path) -> None:
    make_pair(tmp_path, end_id=None)
    assert check_recipe(recipe_of(tmp_path))[1].end_ids == (0,)


def rewrite_tokenizer(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, **changes}), encoding="utf-8")


def swap_two_tokens(tmp_path: Path) -> None:
    path = tmp_path / "draft" / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(document), encoding="utf-8")


def test_different_tokenizers(tmp_path: Path) -> None:
    make_pair(tmp_path)
    swap_two_tokens(tmp_path)
    with pytest.raises(IncompatiblePairError, match="different tokenizers"):
        check_recipe(recipe_of(tmp_path))


@pytest.mark.parametrize(
    ("draft", "target", "serving", "message"),
    [
        ({"vocab_size": 2304}, {}, {}, "different tokenizers"),
        ({"end_id": 1}, {}, {}, "end a text with different tokens"),
        ({"max_position_embeddings": 512}, {}, {}, "the draft does not reach"),
        ({}, {"max_position_embeddings": 512}, {}, "the target does not reach"),
        ({}, {}, {"max_seq_len": 4096}, "max_seq_len=4096"),
    ],
)
def test_pairs_that_do_not_fit(
    draft: dict[str, Any], target: dict[str, Any], serving: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_pair(tmp_path, draft, **target)
    with pytest.raises(IncompatiblePairError, match=message) as caught:
        check_recipe(recipe_of(tmp_path, **serving))
    assert caught.value.values and caught.value.limit and caught.value.remedy


def test_same_tokenizer_but_padded_vocabulary(tmp_path: Path) -> None:
    make_pair(tmp_path, {"vocab_size": 2304})
    tokenizer = (tmp_path / "target" / "tokenizer.json").read_bytes()
    (tmp_path / "draft" / "tokenizer.json").write_bytes(tokenizer)
    with pytest.raises(IncompatiblePairError, match="different vocabulary sizes"):
        check_recipe(recipe_of(tmp_path))


def test_tokenizer_larger_than_the_network(tmp_path: Path) -> None:
    make_pair(tmp_path, {"vocab_size": 1024})
    (tmp_path / "draft" / "tokenizer.json").write_bytes((tmp_path / "target" / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match="does not belong to its checkpoint"):
        check_recipe(recipe_of(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\xff", b'{"model": {"vocab": 3}}'])
def test_unreadable_tokenizer(content: bytes | None, tmp_path: Path) -> None:
    make_pair(tmp_path)
    path = tmp_path / "target" / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        check_recipe(recipe_of(tmp_path))


def test_nothing_says_which_token_ends_a_text(tmp_path: Path) -> None:
    make_pair(tmp_path, {"end_id": None}, end_id=None)
    for role in ("draft", "target"):
        rewrite_tokenizer(tmp_path / role / "tokenizer.json", added_tokens=[])
    with pytest.raises(CheckpointError, match="which tokens end a text"):
        check_recipe(recipe_of(tmp_path))


def test_impossible_growth_is_found_before_building(tmp_path: Path) -> None:
    make_pair(tmp_path)
    raw = {
        "name": "test",
        "target": {
            "checkpoint": str(tmp_path / "target"),
            "growth": {
                "hidden_size": 64,
                "num_layers": 4,
                "intermediate_size": 512,
                "num_heads": 8,
                "num_kv_heads": 2,
            },
        },
        "draft": {"checkpoint": str(tmp_path / "draft")},
        "serving": {},
    }
    with pytest.raises(RecipeError, match="would shrink"):
        check_recipe(parse_recipe(raw, tmp_path / "test.yaml"))


def test_absent_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match="does not exist"):
        check_recipe(recipe_of(tmp_path))


def test_tokenizer_with_a_list_as_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    model = {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1], ["</s>", 0]]}
    path.write_text(
        json.dumps({"model": model, "added_tokens": [{"id": 2, "content": "</s>"}]}), encoding="utf-8"
    )
    info = read_tokenizer(path)
    assert (info.num_tokens, info.end_ids) == (3, (2,))
