"""Make ``tokenizer.json`` and the settings beside it from the metadata of a GGUF file.

The file has tokens, merges or scores, and the name of the rule by which text is cut before merges apply. The
rules themselves are those of the tokenizers that these names stand for; llama.cpp has approximations of some
(``src/llama-vocab.cpp``), which are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from build.checkpoints.tokenizer_file import END_TOKENS
from build.gguf.file import GgufFile

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


@dataclass(frozen=True)
class _Rule:
    """How a byte-level tokenizer cuts text.

    Attributes:
        cuts: Pre-tokenizers that come before that of bytes.
        has_gpt2_words: Whether text is cut by GPT-2's own pattern at last.
        normalizes: Whether text is composed (NFC) first.
        ignores_merges: Whether a word that is a token needs no merges.
        adds_bos: Whether a text begins with the token BOS unless the file says otherwise.
    """

    cuts: tuple[dict[str, Any], ...] = ()
    has_gpt2_words: bool = False
    normalizes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> tuple[dict[str, Any], ...]:
    """Return the rule of GPT-4 and its followers, which differ in how many digits stay together."""
    words = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    return (_split(words + _LINES_AND_SPACES),)


def _cased_words(digits: str, suffix: str = "") -> tuple[dict[str, Any], ...]:
    """Return the rule of GPT-4o and its followers, which also cut between small letters and capitals."""
    start, upper, lower = (
        r"[^\r\n\p{L}\p{N}]?",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    )
    words = f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"
    return (_split(rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES_AND_SPACES}"),)


_SINGLE_DIGITS = _Rule(({"type": "Digits", "individual_digits": True},), has_gpt2_words=True)
_RULES: Mapping[str, _Rule] = {
    "qwen2": _Rule(_words(r"\p{N}"), normalizes=True),
    "llama-bpe": _Rule(_words(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True),
    "smaug-bpe": _Rule(_words(r"\p{N}{1,3}"), ignores_merges=True),  # Llama 3's without BOS: SmolLM3
    "dbrx": _Rule(_words(r"\p{N}{1,3}")),  # GPT-4's: OLMo 2, Phi-4
    "gpt-4o": _Rule(_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")),  # Phi-4-mini
    "tekken": _Rule(_cased_words(r"\p{N}"), ignores_merges=True, adds_bos=True),  # Mistral Nemo
    "smollm": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,  # Granite 3
    "starcoder": _SINGLE_DIGITS,
    "gpt-2": _Rule(has_gpt2_words=True),
}
"""By ``tokenizer.ggml.pre``."""


@dataclass(frozen=True)
class GgufTokenizer:
    """The documents of a tokenizer.

    Attributes:
        tokenizer: Content of ``tokenizer.json``.
        settings: Content of ``tokenizer_config.json``: chat templates, and the tokens that they name.
        end_ids: Tokens that end an answer.
    """

    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    end_ids: list[int]


def tokenizer_of(file: GgufFile) -> GgufTokenizer:
    """Return the documents of the tokenizer in a file.

    Raises:
        CheckpointError: The metadata is incomplete, or names a model or a rule that is not known.
    """
    tokens, types = _tokens(file)
    kind, rule = file.value(f"{_KEY}model", str), _Rule(adds_bos=True)
    if kind == "gpt2":
        rule = _rule(file)
        document = _byte_pairs(file, rule, tokens, types)
    elif kind == "llama":
        document = _pieces(file, tokens, types)
    else:
        raise file.fail(
            "the tokenizer is not known", f"{_KEY}model={kind!r:.80}", "gpt2 (BPE), llama (SentencePiece)"
        )
    if file.value(f"{_KEY}add_eos_token", bool, False):
        raise file.fail(
            "texts end with a token that the tokenizer adds", f"{_KEY}add_eos_token", "texts that go on"
        )
    named = {name: _token_id(file, f"{name}_token_id", len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    has_begin = file.value(f"{_KEY}add_bos_token", bool, rule.adds_bos)
    if has_begin and named["bos"] is None:
        raise file.fail("no token begins a text", f"no {_KEY}bos_token_id", "one, which comes first")
    begin = named["bos"] if has_begin else None
    # Of Phi-3's added tokens, those of a turn also take the white space behind them.
    is_phi3 = file.architecture == "phi3" and kind == "llama"
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": is_phi3 and token not in ("<unk>", "<s>", "<|endoftext|>"),
            "normalized": False,
            "special": types[number] == _CONTROL,
        }
        for number, token in enumerate(tokens)
        if types[number] in (_CONTROL, _USER_DEFINED)
    ]
    special = {token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL}
    ends = {number for name, number in named.items() if name != "bos" and number is not None}
    ends |= {tokens.index(name) for name in END_TOKENS if name in special}
    names = {"bos_token": named["bos"], "eos_token": named["eos"]}
    names |= {"unk_token": _token_id(file, "unknown_token_id", len(tokens))}
    names |= {"pad_token": _token_id(file, "padding_token_id", len(tokens))}
    return GgufTokenizer(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            **document,
            "post_processor": None if begin is None else _template(tokens[begin], begin),
        },
        {name: tokens[number] for name, number in names.items() if number is not None} | _templates(file),
        sorted(ends),
    )


def _tokens(file: GgufFile) -> tuple[Sequence[str], Sequence[int]]:
    """Return the tokens and their types."""
    tokens: list[str] = file.value(f"{_KEY}tokens", list, [])
    types = file.value(f"{_KEY}token_type", np.ndarray, np.zeros(0))
    if not tokens or types.size != len(tokens):
        raise file.fail(
            "the tokenizer is incomplete", f"{len(tokens)} tokens, {types.size} types", "equally many"
        )
    if len(set(tokens)) < len(tokens):
        raise file.fail(
            "a token is there twice", f"{len(tokens)} tokens", f"{len(set(tokens))} different ones"
        )
    return tokens, types.tolist()


def _token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    """Return the id that a special token has; None for none."""
    number: int | None = file.value(f"{_KEY}{name}", int)
    if number is not None and not 0 <= number < num_tokens:
        raise file.fail("a special token is none", f"{_KEY}{name}={number}", f"{num_tokens} tokens")
    return number


def _templates(file: GgufFile) -> dict[str, Any]:
    """Return the chat template, or the default and the named ones, as ``tokenizer_config.json`` has them."""
    prefix = "tokenizer.chat_template"
    default = file.value(prefix, str)
    named = {
        name.removeprefix(f"{prefix}."): file.value(name, str)
        for name in file.metadata
        if name.startswith(f"{prefix}.")
    }
    if not named:
        return {} if default is None else {"chat_template": default}
    templates = {**named, **({} if default is None else {"default": default})}
    return {"chat_template": [{"name": name, "template": text} for name, text in templates.items()]}


def _template(begin: str, number: int) -> dict[str, Any]:
    def part(kind: str, name: str, place: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": place}}

    first = part("SpecialToken", begin, 0)
    return {
        "type": "TemplateProcessing",
        "single": [first, part("Sequence", "A", 0)],
        "pair": [first, part("Sequence", "A", 0), part("SpecialToken", begin, 1), part("Sequence", "B", 1)],
        "special_tokens": {begin: {"id": begin, "ids": [number], "tokens": [begin]}},
    }


def _rule(file: GgufFile) -> _Rule:
    name = file.value(f"{_KEY}pre", str)
    if name not in _RULES:
        raise file.fail(
            "the rule that cuts text into words is not known",
            f"{_KEY}pre={name!r:.80}",
            f"known: {', '.join(_RULES)}",
        )
    return _RULES[name]


def _byte_pairs(file: GgufFile, rule: _Rule, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    end = 1 + max((number for number, kind in enumerate(types) if kind != _UNUSED), default=-1)
    merges = [_merged(merge) for merge in file.value(f"{_KEY}merges", list, [])]
    return {
        "normalizer": {"type": "NFC"} if rule.normalizes else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*rule.cuts, _byte_level(use_regex=rule.has_gpt2_words)],
        },
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule.ignores_merges,
            "vocab": {token: number for number, token in enumerate(tokens[:end])},
            "merges": merges,
        },
    }


def _merged(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge, of which the first may be a space."""
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _pieces(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Return SentencePiece's BPE: of all neighbours whose union is a piece, the best score goes first."""
    scores = file.value(f"{_KEY}scores", np.ndarray, np.zeros(0)).tolist()
    if len(scores) != len(tokens):
        raise file.fail("the tokenizer is incomplete", f"{len(scores)} scores", f"{len(tokens)} tokens")
    vocabulary = {token: number for number, token in enumerate(tokens) if types[number] != _UNUSED}
    normal = {token: number for token, number in vocabulary.items() if types[number] == _NORMAL}
    merges = [
        (-scores[number], normal[token[:cut]], normal[token[cut:]], token[:cut], token[cut:])
        for token, number in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    merges.sort()
    prefix = file.value(f"{_KEY}add_space_prefix", bool, True)
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((token for token, number in vocabulary.items() if types[number] == _UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, replaced]}
        if prefix
        else replaced,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": any(kind == _BYTE for kind in types),
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [merge[3:] for merge in merges],
        },
    }
