"""Tests of maps between two tokenizers, of every kind that people publish, and of pairs built with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from build.checkpoints import token_map as built
from build.checkpoints.token_map import ModelTokens, map_tokens
from build.engines import build_engines
from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.text.token_map import TOKEN_MAP_FILE, TokenMap
from pipelines.text.vocabulary import Vocabulary
from tests.support.checkpoints import make_checkpoint
from tests.support.examples import examples
from tests.support.hugging_face_checkpoints import pair_recipe
from tests.support.partly_shared import share_part
from tests.support.trained_tokenizers import BYTES, TEXTS, TOKENIZERS, byte_level, sentencepiece_bpe, unigram

PAIRS = [(draft, target) for draft in TOKENIZERS for target in TOKENIZERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, ModelTokens]:
    return {kind: tokens_of(made_once(kind), folder / f"{kind}.json") for kind in TOKENIZERS}


@lru_cache
def made_once(kind: str) -> Tokenizer:
    return TOKENIZERS[kind]()


def tokens_of(tokenizer: Tokenizer, path: Path, *, vocab_size: int | None = None, end: str = "</s>") -> Any:
    tokenizer.save(str(path))
    size = 1 + max(tokenizer.get_vocab().values()) if vocab_size is None else vocab_size
    return ModelTokens(path, size, (tokenizer.token_to_id(end),))


def mapped(draft: ModelTokens, target: ModelTokens) -> tuple[built.TokenMap, TokenMap]:
    """Return a map as it is built, and as a server reads it."""
    made = map_tokens(draft, target)
    return made, TokenMap.parse(made.to_json().encode(), Path(TOKEN_MAP_FILE))


@lru_cache
def bytes_of(model: ModelTokens) -> Vocabulary:
    return Vocabulary.from_file(model.tokenizer_path)


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_equal_tokens_have_equal_bytes_and_are_pairs(
    draft: str, target: str, models: dict[str, ModelTokens]
) -> None:
    ours, theirs = models[draft], models[target]
    made, _ = mapped(ours, theirs)
    our_bytes, their_bytes = bytes_of(ours), bytes_of(theirs)
    equal = {int(t): int(d) for t, d in enumerate(made.equal_ids) if d >= 0}
    assert len(set(equal.values())) == len(equal) > 25
    assert all(our_bytes.join([d]) == their_bytes.join([t]) for t, d in equal.items())
    assert all(made.draft_ids[t] == (d,) for t, d in equal.items())
    if draft == target:
        assert len(equal) == made.num_tokens - 1, "all but BOS, which the draft adds itself"


@pytest.mark.parametrize(("draft", "target"), [pair for pair in PAIRS if pair[0] != "unigram"])
@examples(60)
@given(data=st.data())
def test_the_draft_reads_the_bytes_of_any_tokens_in_any_portions(
    draft: str, target: str, data: st.DataObject, models: dict[str, ModelTokens]
) -> None:
    ours, theirs = models[draft], models[target]
    made, translation = mapped_once(ours, theirs)
    ids = np.array(data.draw(st.lists(st.integers(0, theirs.vocab_size - 1), max_size=20)), np.int32)
    read = translation.translate(ids)
    assert bytes_of(ours).join(read.tolist()) == bytes_of(theirs).join(ids.tolist())
    place = data.draw(st.integers(0, len(ids)))
    first, rest = translation.translate_prompt(ids[:place]), translation.translate(ids[place:])
    assert [*first, *rest] == [*made.first_ids, *read]


@lru_cache
def mapped_once(draft: ModelTokens, target: ModelTokens) -> tuple[built.TokenMap, TokenMap]:
    return mapped(draft, target)


@pytest.mark.parametrize(("draft", "target"), PAIRS)
def test_a_text_begins_with_the_drafts_own_first_token_once(
    draft: str, target: str, models: dict[str, ModelTokens]
) -> None:
    ours, theirs = models[draft], models[target]
    _, translation = mapped(ours, theirs)
    for text in TEXTS:
        ids = np.array(made_once(target).encode(text).ids, np.int32)
        read = translation.translate_prompt(ids).tolist()
        bos = made_once(draft).token_to_id("<s>")
        assert read[0] == bos and bos not in read[1:]


def test_spellings_of_a_space_are_the_same_bytes(folder: Path) -> None:
    ours = tokens_of(byte_level(), folder / "ours.json")
    theirs = tokens_of(unigram(), folder / "theirs.json")
    made, _ = mapped(ours, theirs)
    pieces, others = (Tokenizer.from_file(str(each.tokenizer_path)).get_vocab() for each in (theirs, ours))
    assert made.equal_ids[pieces["▁second"]] == others["Ġsecond"]


def test_a_piece_is_proposed_rather_than_the_byte_token_beside_it(folder: Path) -> None:
    """Gemma has a piece for a line break, and <0x0A> after it; Llama 2 has its letters after the bytes."""
    theirs = tokens_of(sentencepiece_bpe(), folder / "theirs.json")
    ours = tokens_of(byte_level(), folder / "ours.json")
    tokenizer = Tokenizer.from_file(str(theirs.tokenizer_path))
    document = json.loads(theirs.tokenizer_path.read_text(encoding="utf-8"))
    vocab = document["model"]["vocab"]
    piece, fallback = vocab["e"], vocab[BYTES[ord("e")]]
    for first, second in ((piece, fallback), (fallback, piece)):
        vocab["e"], vocab[BYTES[ord("e")]] = first, second
        theirs.tokenizer_path.write_text(json.dumps(document), encoding="utf-8")
        made, _ = mapped(ours, theirs)
        assert made.equal_ids[first] >= 0 > made.equal_ids[second]
        assert made.draft_ids[first] == made.draft_ids[second], "both are read"
    assert tokenizer.token_to_id("e") == piece


def test_end_tokens_with_other_names_are_one_pair(folder: Path) -> None:
    draft = byte_level()
    draft.add_special_tokens(["<|im_end|>", "<|unused|>"])
    target = byte_level()
    target.add_special_tokens(["<|eot_id|>", "<|eom_id|>"])
    ours = tokens_of(draft, folder / "ours.json", end="<|im_end|>")
    theirs = tokens_of(target, folder / "theirs.json", end="<|eot_id|>")
    made, _ = mapped(ours, theirs)
    assert made.equal_ids[theirs.end_ids[0]] == ours.end_ids[0]
    other = target.token_to_id("<|eom_id|>")
    assert made.equal_ids[other] == -1 and made.draft_ids[other] == ()


def test_a_token_that_begins_and_ends_texts_is_never_proposed(folder: Path) -> None:
    """Requests may name no end token; then a token that is read as none would be followed by no row."""
    ours = tokens_of(byte_level(), folder / "ours.json")
    theirs = tokens_of(byte_level(), folder / "theirs.json", end="<s>")
    made, _ = mapped(ours, theirs)
    assert (made.equal_ids[theirs.end_ids[0]], made.draft_ids[theirs.end_ids[0]]) == (-1, ())


def test_a_special_token_that_the_drafts_network_lacks_is_not_proposed(folder: Path) -> None:
    draft = byte_level()
    size = draft.get_vocab_size()
    draft.add_special_tokens(["<image>"])
    target = byte_level()
    target.add_special_tokens(["<image>"])
    ours = tokens_of(draft, folder / "ours.json", vocab_size=size)
    theirs = tokens_of(target, folder / "theirs.json", vocab_size=size + 60)
    made, translation = mapped(ours, theirs)
    image = target.token_to_id("<image>")
    assert (made.equal_ids[image], made.draft_ids[image]) == (-1, ())
    assert len(made.equal_ids) == len(made.draft_ids) == size + 60, (
        "rows that pad the embedding have no token"
    )
    assert translation.translate(np.array([size + 59], np.int32)).size == 0


def test_the_share_counts_the_tokens_of_a_text(folder: Path) -> None:
    theirs = tokens_of(byte_level(), folder / "theirs.json")
    characters = Tokenizer.from_str(byte_level().to_str())
    document = json.loads(characters.to_str())
    document["model"]["merges"] = []
    document["model"]["vocab"] = {t: i for t, i in document["model"]["vocab"].items() if len(t) == 1 or i < 2}
    (folder / "ours.json").write_text(json.dumps(document), encoding="utf-8")
    ours = ModelTokens(folder / "ours.json", theirs.vocab_size, (1,))
    assert map_tokens(theirs, theirs).share == 1
    single = map_tokens(ours, theirs)
    ids = byte_level().encode(built.SAMPLE, add_special_tokens=False).ids
    lengths = [len(bytes_of(theirs).join([token_id])) for token_id in ids]
    assert single.share == pytest.approx(sum(length == 1 for length in lengths) / len(ids))
    assert f"{single.share:.0%}" in single.notice


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format":2,"first_ids":[],"draft_ids":[]}'])
def test_a_map_of_another_format_is_refused(content: bytes) -> None:
    with pytest.raises(EngineLoadError, match="cannot be read"):
        TokenMap.parse(content, Path(TOKEN_MAP_FILE))


def built_pair(
    folder: Path,
    target: Path,
    draft: Path,
    quantization: str = "int8",
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Build the engines of two checkpoints in a folder; return their directories."""
    folder.mkdir(exist_ok=True)
    sections = ({"checkpoint": str(each), "quantization": quantization} for each in (draft, target))
    found = build_engines(pair_recipe(folder, *sections), folder / "engines", report)
    return {role: Path(found[role]) for role in ("draft", "target")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder / "target")
    share_part(folder / "target", folder / "draft", 1500)
    return folder


def test_the_engine_holds_the_map_and_the_targets_tokenizer(tiny: Path) -> None:
    lines: list[str] = []
    engines = built_pair(tiny / "pair", tiny / "target", tiny / "draft", report=lines.append)
    assert any("1,500 of the target's 2,048 tokens" in line for line in lines)
    draft, target = (EngineFiles(engines[role]) for role in ("draft", "target"))
    assert draft.read("tokenizer.json") == target.read("tokenizer.json")
    assert len(json.loads(draft.read("token_map.json"))["draft_ids"]) == 2048
    assert "token_map.json" not in target.manifest["files"]
    both = ("tokenizer_identity_sha256", "tokenizer_sha256", "end_ids")
    assert all(draft.manifest[name] == target.manifest[name] for name in both), "rollouts compare these"


def test_another_map_makes_another_engine(tiny: Path, tmp_path: Path) -> None:
    one = built_pair(tmp_path / "pair", tiny / "target", tiny / "draft")
    share_part(tiny / "target", tmp_path / "draft", 1500, seed=1)
    for name in ("config.json", "rank0.safetensors"):  # the same weights, whose tokens have other ids
        (tmp_path / "draft" / name).write_bytes((tiny / "draft" / name).read_bytes())
    other = built_pair(tmp_path / "pair", tiny / "target", tmp_path / "draft")
    assert one["target"] == other["target"] and one["draft"] != other["draft"]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_are_those_of_equal_tokens_to_the_bit(tiny: Path, tmp_path: Path, quantization: str) -> None:
    pair = built_pair(tmp_path / "pair", tiny / "target", tiny / "draft", quantization)
    own = built_pair(tmp_path / "own", tiny / "draft", tiny / "draft", quantization)
    ids = np.random.default_rng(3).integers(0, 1500, 9).astype(np.int32)

    def logits_of(directory: Path) -> Any:
        engine = load_engine(EngineFiles(directory), 4)
        chunk = Chunk(ids, 0, (1,), is_decode=True, num_logits=len(ids))
        return engine.step(pack([chunk], engine.config.kv_block_size)).copy()

    selected, all_own = logits_of(pair["draft"]), logits_of(own["target"])
    assert selected.shape == (9, 2048) and all_own.shape == (9, 1500)
    read_as = json.loads((pair["draft"] / "token_map.json").read_text(encoding="utf-8"))["draft_ids"]
    equal = {token_id: read[0] for token_id, read in enumerate(read_as) if len(read) == 1}
    assert len(equal) == 1500 and (selected[:, list(equal)] == all_own[:, list(equal.values())]).all()
    assert np.isneginf(np.delete(selected, list(equal), axis=1)).all()


def test_an_engine_tries_its_kernels_with_tokens_that_it_reads(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft has logits for 2,048 tokens and embeddings for 1,500."""
    read: list[int] = []
    compute = Engine.run

    def noting(self: Engine, inputs: StepInputs, *others: Any) -> Any:
        read.extend(inputs.input_ids.tolist())
        return compute(self, inputs, *others)

    monkeypatch.setattr(Engine, "run", noting)
    load_engine(EngineFiles(built_pair(tmp_path, tiny / "target", tiny / "draft")["draft"]), 4)
    assert read and max(read) < 1500
