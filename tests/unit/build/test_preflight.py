"""Tests of preflight: a pair that cannot work together is refused before anything is compiled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, pre_tokenizers, trainers

from build.checkpoints.token_map import SAMPLE
from build.checkpoints.tokenizer_file import read_tokenizer
from build.preflight import check_recipe, main
from build.recipe import Recipe, parse_recipe
from pipelines.errors import CheckpointError, DraftproofError, IncompatiblePairError
from tests.support.checkpoints import make_checkpoint
from tests.support.hugging_face_checkpoints import make_hugging_face
from tests.support.tiny_engines import END_OF_TEXT, added_token


def raw_recipe(tmp_path: Path, **serving: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "target": {"checkpoint": str(tmp_path / "target")},
        "draft": {"checkpoint": str(tmp_path / "draft")},
        "serving": serving,
    }


def recipe_of(tmp_path: Path, **serving: Any) -> Recipe:
    return parse_recipe(raw_recipe(tmp_path, **serving), tmp_path / "test.yaml")


def make_pair(tmp_path: Path, draft: dict[str, Any] | None = None, **target: Any) -> None:
    make_checkpoint(tmp_path / "target", **target)
    make_checkpoint(tmp_path / "draft", **{"num_hidden_layers": 1, **(draft or {})})


def change_tokenizer(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = checkpoint / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def test_a_pair_that_fits(tmp_path: Path) -> None:
    make_pair(tmp_path)
    draft, target = check_recipe(recipe_of(tmp_path))
    assert draft.end_ids == target.end_ids == (0,)
    assert draft.tokenizer.sha256 == target.tokenizer.sha256


def _spelled_as_before(document: dict[str, Any]) -> None:
    """Write merges as versions of the package ``tokenizers`` before 0.20 do."""
    merges = document["model"]["merges"]
    document["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _spelled_as_now(document: dict[str, Any]) -> None:
    merges = document["model"]["merges"]
    document["model"]["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


def _without_defaults(document: dict[str, Any]) -> None:
    for name in ("dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"):
        document["model"].pop(name, None)
    document["model"].update(continuing_subword_prefix="", end_of_word_suffix="")


def _as_a_trainer_left_it(document: dict[str, Any]) -> None:
    document["truncation"] = {"max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    document["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }


@pytest.mark.parametrize(
    "change", [_spelled_as_before, _spelled_as_now, _without_defaults, _as_a_trainer_left_it]
)
def test_how_a_file_spells_what_it_does_is_no_difference(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    make_pair(tmp_path)
    change_tokenizer(tmp_path / "draft", change)
    draft, target = check_recipe(recipe_of(tmp_path))
    assert draft.tokenizer.sha256 == target.tokenizer.sha256


def _another_split(document: dict[str, Any]) -> None:
    document["pre_tokenizer"] = {"type": "Digits", "individual_digits": True}


def _merges_in_another_order(document: dict[str, Any]) -> None:
    document["model"]["merges"].reverse()


def _another_end(document: dict[str, Any]) -> None:
    document["added_tokens"][0]["lstrip"] = True


@pytest.mark.parametrize("change", [_another_split, _merges_in_another_order, _another_end])
def test_tokenizers_that_do_something_differently_are_different(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    make_pair(tmp_path)
    change_tokenizer(tmp_path / "draft", change)
    draft, target = (read_tokenizer(tmp_path / role / "tokenizer.json") for role in ("draft", "target"))
    assert draft.sha256 != target.sha256


def swap_two_tokens(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def test_a_draft_with_another_tokenizer_gets_the_targets_and_a_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pair(tmp_path)
    change_tokenizer(tmp_path / "draft", swap_two_tokens)
    draft, target = check_recipe(recipe_of(tmp_path))
    assert draft.token_map is not None and target.token_map is None
    assert (draft.tokenizer, draft.tokenizer_path) == (target.tokenizer, target.tokenizer_path)
    swapped = [t for t, own in enumerate(draft.token_map.equal_ids.tolist()) if own not in (t, -1)]
    assert len(swapped) == 2, "the other tokens have the same ids"
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(raw_recipe(tmp_path)), encoding="utf-8")
    assert main(["--recipe", str(path), "--engines", str(tmp_path / "engines")]) == 0
    assert "has another tokenizer, so it proposes only tokens that both have" in capsys.readouterr().out


def test_a_draft_with_too_few_of_the_targets_tokens_is_refused(tmp_path: Path) -> None:
    make_pair(tmp_path)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    for role, size in (("target", 900), ("draft", 257)):  # the draft reads bytes
        path = tmp_path / role / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator([SAMPLE], trainer)
        tokenizer.save(str(path))
    with pytest.raises(IncompatiblePairError, match="too few tokens in common") as refused:
        check_recipe(recipe_of(tmp_path))
    assert re.search(r"of the target's [\d,]+ tokens, \d+% of a sample text", refused.value.message)
    assert "50%" in refused.value.message and "family" in refused.value.remedy


@pytest.mark.parametrize(
    ("draft", "target", "serving", "message"),
    [
        ({"end_id": 1}, {}, {}, "no end token in common"),
        ({"max_position_embeddings": 512}, {}, {}, "longer than the draft's context"),
        ({}, {"max_position_embeddings": 512}, {}, "longer than the target's context"),
        ({}, {}, {"max_seq_len": 4096}, "max_seq_len=4096"),
    ],
)
def test_pairs_that_do_not_fit(
    draft: dict[str, Any], target: dict[str, Any], serving: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_pair(tmp_path, draft, **target)
    with pytest.raises(IncompatiblePairError, match=message) as caught:
        check_recipe(recipe_of(tmp_path, **serving))
    assert caught.value.message and caught.value.remedy


def test_same_tokenizer_but_padded_vocabulary(tmp_path: Path) -> None:
    make_pair(tmp_path, {"vocab_size": 2304})
    tokenizer = (tmp_path / "target" / "tokenizer.json").read_bytes()
    (tmp_path / "draft" / "tokenizer.json").write_bytes(tokenizer)
    check_recipe(recipe_of(tmp_path))  # build/networks/network.py pads the draft


def _with_an_image(document: dict[str, Any]) -> None:
    tokens = document["added_tokens"]
    tokens.append({**tokens[0], "id": 70000, "content": "<image>", "special": True})


def test_a_special_token_behind_the_networks_vocabulary(tmp_path: Path) -> None:
    """The text models of Gemma 3 have one for images."""
    make_pair(tmp_path)
    for role in ("draft", "target"):
        change_tokenizer(tmp_path / role, _with_an_image)
    assert check_recipe(recipe_of(tmp_path))[0].tokenizer.num_tokens < 70000


def test_tokenizer_larger_than_the_network(tmp_path: Path) -> None:
    make_pair(tmp_path, {"vocab_size": 1024})
    (tmp_path / "draft" / "tokenizer.json").write_bytes((tmp_path / "target" / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"has \d+ tokens"):
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


def test_absent_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DraftproofError, match="cannot be read"):
        check_recipe(recipe_of(tmp_path))


def test_tokenizer_with_a_list_as_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    model = {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1], ["</s>", 0]]}
    document = {"version": "1.0", "model": {**model, "unk_id": 0}, "added_tokens": [added_token("</s>", 2)]}
    path.write_text(json.dumps(document), encoding="utf-8")
    info = read_tokenizer(path)
    assert (info.num_tokens, info.end_ids) == (3, (2,))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quantization": "int4"}, "target, int4: rounds weights of layers\n"),
        (
            {"quantization": "int4", "lm_head": "int8"},
            "target, int4: rounds weights of layers and the output head\n",
        ),
        ({"quantization": "auto"}, "target: rounds weights of layers\n"),
        ({"quantization": "none"}, "target, none: weights stay as the checkpoint has them\n"),
    ],
)
def test_the_command_says_whether_weights_are_rounded(
    settings: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"checkpoint": str(make_hugging_face(tmp_path / "target"))}
    target = {**engine, **settings}
    document = {"name": "pair", "target": target, "draft": engine, "serving": {"max_seq_len": 128}}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert main(["--recipe", str(tmp_path / "pair.yaml"), "--engines", str(tmp_path / "engines")]) == 0
    assert said in capsys.readouterr().out
