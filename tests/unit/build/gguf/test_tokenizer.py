"""Tests of tokenizers made from the metadata of GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from build.checkpoints.engine_texts import read_chat_template
from build.gguf.file import GgufFile
from build.gguf.tokenizer import GgufTokenizer, tokenizer_of
from pipelines.errors import CheckpointError
from tests.support.gguf_files import byte_pairs, pieces


def _made(metadata: dict[str, Any], **changes: Any) -> GgufTokenizer:
    changed = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return tokenizer_of(GgufFile(Path("a.gguf"), changed, {}))


def _loaded(made: GgufTokenizer) -> Tokenizer:
    return Tokenizer.from_str(made.tokenizer.to_str())


def _words(pre: str, text: str) -> list[str]:
    """Return the words that merges cannot leave, as text."""
    tokenizer = _made(byte_pairs(pre=pre)).tokenizer
    normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    assert tokenizer.pre_tokenizer is not None
    return [normal[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


TEXT = "I'LL don't 12345 fooBar a/b\n\n  x e\u0301"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("qwen2", "I|'LL| don|'t| |1|2|3|4|5| fooBar| a|/b|\n\n| | x| \xe9"),
        ("llama-bpe", "I|'LL| don|'t| |123|45| fooBar| a|/b|\n\n| | x| e|\u0301"),
        ("gpt-4o", "I'LL| don't| |123|45| foo|Bar| a|/b|\n\n| | x| e\u0301"),
        ("tekken", "I|'LL| don|'t| |1|2|3|4|5| foo|Bar| a|/b|\n\n| | x| e\u0301"),
        ("smollm", "I|'|LL| don|'t| |1|2|3|4|5| fooBar| a|/|b|\n\n | x| e|\u0301"),
        ("gpt-2", "I|'|LL| don|'t| 12345| fooBar| a|/|b|\n\n | x| e|\u0301"),
    ],
)
def test_text_is_cut_by_the_rule_that_the_file_names(pre: str, words: str) -> None:
    assert "|".join(_words(pre, TEXT)) == words


@pytest.mark.parametrize(
    ("same", "other"), [("smaug-bpe", "llama-bpe"), ("dbrx", "llama-bpe"), ("refact", "smollm")]
)
def test_rules_with_several_names(same: str, other: str) -> None:
    assert _words(same, TEXT) == _words(other, TEXT)


def test_bytes_are_merged_as_the_file_says() -> None:
    tokenizer = _loaded(_made(byte_pairs()))
    text = "hello world<|im_end|>  <|extra|>\u00e9[PAD300]"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[:2] == ["hello", "\u0120w"]
    assert {"<|im_end|>", "<|extra|>"} <= set(encoded.tokens) and "[PAD300]" not in encoded.tokens
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert tokenizer.decode(encoded.ids) == text.replace("<|im_end|>", "")  # the user's own stay


def test_a_word_that_is_a_token_needs_no_merges_where_the_rule_says_so() -> None:
    metadata = byte_pairs(pre="llama-bpe")
    metadata["tokenizer.ggml.tokens"][400] = "whole"
    metadata["tokenizer.ggml.token_type"][400] = 1
    assert _loaded(_made(metadata, add_bos_token=False)).encode("whole").ids == [400]
    assert len(_loaded(_made(metadata, pre="dbrx")).encode("whole").ids) == 5


def test_pieces_are_merged_by_their_scores() -> None:
    tokenizer = _loaded(_made(pieces()))
    encoded = tokenizer.encode("hello \u00e9\U0001f642<user>he</s><unk>")
    emoji = [f"<0x{byte:02X}>" for byte in "\U0001f642".encode()]
    assert encoded.tokens == [
        *("<s>", "\u2581hello", "\u2581", "\u00e9", *emoji),
        *("<user>", "\u2581", "he", "</s>", "<unk>"),
    ]
    assert tokenizer.decode(tokenizer.encode("hello  hello\n").ids) == "hello  hello\n"
    metadata = pieces()
    best = metadata["tokenizer.ggml.tokens"].index("el")
    metadata["tokenizer.ggml.scores"][best] = 1
    assert _loaded(_made(metadata)).encode("hello").tokens == ["<s>", "\u2581", "h", "el", "l", "o"]
    assert _loaded(_made(pieces(), add_space_prefix=False)).encode("hello").tokens[1] == "hello"


@pytest.mark.parametrize(
    ("metadata", "changes", "first"),
    [
        (byte_pairs(), {}, []),
        (byte_pairs(), {"add_bos_token": True}, [0]),
        (byte_pairs(pre="llama-bpe"), {}, [0]),
        (byte_pairs(pre="llama-bpe"), {"add_bos_token": False}, []),
        (byte_pairs(pre="tekken"), {}, [0]),
        (pieces(), {}, [1]),
        (pieces(), {"add_bos_token": False}, []),
    ],
)
def test_a_text_begins_as_the_file_or_its_rule_says(
    metadata: dict[str, Any], changes: dict[str, Any], first: list[int]
) -> None:
    assert _loaded(_made(metadata, **changes)).encode("").ids == first


def test_an_answer_ends_with_every_token_that_llama_cpp_takes_for_an_end() -> None:
    assert _made(byte_pairs()).end_ids == [1]
    metadata = byte_pairs()
    metadata["tokenizer.ggml.tokens"][0] = "<|endoftext|>"
    assert _made(metadata).end_ids == [0, 1], "by its name"
    assert _made(metadata, eot_token_id=5, eom_token_id=6).end_ids == [0, 1, 5, 6]
    metadata["tokenizer.ggml.token_type"][0] = 1
    assert _made(metadata).end_ids == [1], "text that looks like it"


def test_phi_3_takes_white_space_behind_the_tokens_of_a_turn() -> None:
    metadata = pieces()
    assert _loaded(_made(metadata)).encode("</s> \n he").tokens[2:] != ["\u2581", "he"]
    metadata["general.architecture"] = "phi3"
    assert _loaded(_made(metadata)).encode("</s> \n he").tokens[2:] == ["\u2581", "he"]


def test_chat_templates_come_with_the_names_of_their_tokens(tmp_path: Path) -> None:
    metadata = {**byte_pairs(), "tokenizer.chat_template": "{{ bos_token }}"}
    named = {**metadata, "tokenizer.chat_template.tool_use": "{{ tools }}"}
    for each, templates in ((metadata, {}), (named, {"tool_use": "{{ tools }}"})):
        made = _made(each)
        (tmp_path / "tokenizer.json").write_text(made.tokenizer.to_str())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(made.settings))
        found = json.loads(read_chat_template(tmp_path) or "")
        assert found["templates"] == {"default": "{{ bos_token }}", **templates}
        tokens = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
        assert found["special_tokens"] == tokens
    assert "chat_template" not in _made(byte_pairs()).settings


@pytest.mark.parametrize(
    ("metadata", "changes", "words"),
    [
        (byte_pairs(), {"model": "bert"}, "tokenizer.ggml.model='bert'; known: gpt2"),
        (byte_pairs(), {"model": None}, "tokenizer.ggml.model=None; known: gpt2"),
        (byte_pairs(), {"model": 7}, "tokenizer.ggml.model=7 is no str"),
        (byte_pairs(), {"pre": "deepseek-llm"}, "tokenizer.ggml.pre='deepseek-llm'; known: qwen2"),
        (byte_pairs(), {"pre": "default"}, "tokenizer.ggml.pre='default'; known"),
        (byte_pairs(), {"pre": None}, "tokenizer.ggml.pre=None; known"),
        (byte_pairs(), {"tokens": []}, "incomplete: 0 tokens, 512 types"),
        (byte_pairs(), {"token_type": np.zeros(3, np.int32)}, "incomplete: 512 tokens, 3 types"),
        (byte_pairs(), {"tokens": ["a"] * 512}, "512 tokens, and only 1 different ones"),
        (byte_pairs(), {"merges": np.zeros(3, np.int32)}, "tokenizer.ggml.merges=.* is no list"),
        (byte_pairs(), {"merges": ["h e", "x unknown"]}, "the tokenizer contradicts itself: .*unknown"),
        (byte_pairs(), {"eos_token_id": 512}, "tokenizer.ggml.eos_token_id=512 is none of 512 tokens"),
        (byte_pairs(), {"add_bos_token": True, "bos_token_id": None}, "no tokenizer.ggml.bos_token_id"),
        (byte_pairs(), {"add_eos_token": True}, "add_eos_token: the tokenizer would end every prompt"),
        (pieces(), {"scores": np.zeros(3, np.float32)}, "incomplete: 273 tokens, 3 scores"),
    ],
)
def test_a_tokenizer_that_is_not_known_or_whole_is_refused(
    metadata: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        _made(metadata, **changes)
