"""Make ``tokenizer.json`` and the settings beside it from the metadata of a GGUF file.

The file has tokens, merges or scores, and the name of the rule by which text is cut before merges apply. The
rules themselves are those of the tokenizers that these names stand for; llama.cpp has approximations of some
(``src/llama-vocab.cpp``), which are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from build.checkpoints.tokenizer_file import END_TOKENS
from build.gguf.file import GgufFile
from pipelines.errors import CheckpointError

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"
_LONGEST_TOKEN = 1024  # characters
_MOST_MERGES = 1 << 21


@dataclass(frozen=True)
class _Rule:
    """How a byte-level tokenizer cuts text.

    Attributes:
        words: Pattern of a word; None for that of GPT-2.
        cuts_digits: Whether each digit is a word.
        composes: Whether characters are composed (NFC) first.
        ignores_merges: Whether a word that is a token needs no merges.
        adds_bos: Whether a text begins with the token BOS unless the file says otherwise.
    """

    words: str | None = None
    cuts_digits: bool = False
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> Any:
        """Return what cuts text into words of bytes."""
        cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.cuts_digits else []
        if self.words is not None:
            cuts.append(pre_tokenizers.Split(Regex(self.words), "isolated"))
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        return pre_tokenizers.Sequence(cuts)


_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_START, _SPACES = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Return the words of GPT-4 and its followers, which differ in how many digits stay together."""
    return rf"{_SUFFIX}|{_START}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, suffix: str) -> str:
    """Return the words of GPT-4o and its followers, which also end between small letters and capitals."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = f"{_START}{upper}*{lower}+{suffix}|{_START}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_GPT4 = _words(r"\p{N}{1,3}")
_RULES: Mapping[str, _Rule] = {
    "qwen2": _Rule(_words(r"\p{N}"), composes=True),
    "llama-bpe": _Rule(_GPT4, ignores_merges=True, adds_bos=True),
    "smaug-bpe": _Rule(_GPT4, ignores_merges=True),  # Llama 3's without BOS: SmolLM3
    "dbrx": _Rule(_GPT4),  # OLMo 2, Phi-4
    "gpt-4o": _Rule(_cased_words(r"\p{N}{1,3}", f"{_SUFFIX}?")),  # Phi-4-mini
    "tekken": _Rule(_cased_words(r"\p{N}", ""), ignores_merges=True, adds_bos=True),  # Mistral Nemo
    "smollm": _Rule(cuts_digits=True),
    "refact": _Rule(cuts_digits=True),  # Granite 3
    "starcoder": _Rule(cuts_digits=True),
    "gpt-2": _Rule(),
}
"""By ``tokenizer.ggml.pre``."""


@dataclass(frozen=True)
class GgufTokenizer:
    """A tokenizer, and what belongs to it.

    Attributes:
        tokenizer: The tokenizer.
        settings: Content of ``tokenizer_config.json``: chat templates, and the tokens that they name.
        end_ids: Tokens that end an answer.
    """

    tokenizer: Tokenizer
    settings: dict[str, Any]
    end_ids: list[int]


def tokenizer_of(file: GgufFile) -> GgufTokenizer:
    """Return the tokenizer in a file.

    Raises:
        CheckpointError: The metadata is incomplete, or names a model or a rule that is not known.
    """
    tokens, types = _tokens(file)
    kind, rule = file.value(f"{_KEY}model", str), _Rule(adds_bos=True)
    try:
        if kind == "gpt2":
            rule = _rule(file)
            tokenizer = _byte_pairs(file, rule, tokens, types)
        elif kind == "llama":
            tokenizer = _pieces(file, tokens, types)
        else:
            raise file.fail(f"{_KEY}model={kind!r:.80}; known: gpt2 (BPE), llama (SentencePiece)")
    except CheckpointError:
        raise
    except Exception as error:  # the package tokenizers raises nothing more specific
        raise file.fail(f"the tokenizer contradicts itself: {error!s:.200}") from None
    if file.value(f"{_KEY}add_eos_token", bool, False):
        raise file.fail(f"{_KEY}add_eos_token: the tokenizer would end every prompt")
    # Of Phi-3's added tokens, those of a turn also take the white space behind them.
    strips = file.architecture == "phi3" and kind == "llama"
    plain = ("<unk>", "<s>", "<|endoftext|>")
    tokenizer.add_tokens(
        [
            AddedToken(
                token,
                rstrip=strips and token not in plain,
                normalized=False,
                special=types[number] != _USER_DEFINED,
            )
            for number, token in enumerate(tokens)
            if types[number] in (_CONTROL, _UNKNOWN, _USER_DEFINED)
        ]
    )
    ids = {name: _token_id(file, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    if file.value(f"{_KEY}add_bos_token", bool, rule.adds_bos):
        begin = ids["bos"]
        if begin is None:
            raise file.fail(f"no {_KEY}bos_token_id, with which a text begins")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[begin], "$A"], special_tokens=[(tokens[begin], begin)]
        )
    settings = {f"{name}_token": tokens[ids[name] or 0] for name in ("bos", "eos") if ids[name] is not None}
    ends = {number for name, number in ids.items() if name != "bos" and number is not None}
    controls = (number for number, type_ in enumerate(types) if type_ == _CONTROL)
    ends |= {number for number in controls if tokens[number] in END_TOKENS}
    return GgufTokenizer(tokenizer, {**settings, **_templates(file)}, sorted(ends))


def _tokens(file: GgufFile) -> tuple[Sequence[str], Sequence[int]]:
    """Return the tokens and their types."""
    tokens: list[str] = file.value(f"{_KEY}tokens", list, [])
    types = file.value(f"{_KEY}token_type", np.ndarray, np.zeros(0))
    if not tokens or types.size != len(tokens):
        raise file.fail(f"the tokenizer is incomplete: {len(tokens)} tokens, {types.size} types")
    longest = max(map(len, tokens))
    if longest > _LONGEST_TOKEN:
        raise file.fail(f"a token has {longest} characters, above {_LONGEST_TOKEN}")
    if len(set(tokens)) < len(tokens):
        raise file.fail(f"{len(tokens)} tokens, and only {len(set(tokens))} different ones")
    return tokens, types.tolist()


def _token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    """Return the id of a special token; None for none."""
    number: int | None = file.value(f"{_KEY}{name}_token_id", int)
    if number is not None and not 0 <= number < num_tokens:
        raise file.fail(f"{_KEY}{name}_token_id={number} is none of {num_tokens} tokens")
    return number


def _templates(file: GgufFile) -> dict[str, Any]:
    """Return the chat template, or the default and the named ones, as ``tokenizer_config.json`` has them."""
    prefix = "tokenizer.chat_template"
    templates = {
        name.removeprefix(prefix).removeprefix(".") or "default": file.value(name, str)
        for name in file.metadata
        if name == prefix or name.startswith(f"{prefix}.")
    }
    if not templates:
        return {}
    return {"chat_template": [{"name": name, "template": text} for name, text in templates.items()]}


def _rule(file: GgufFile) -> _Rule:
    name = file.value(f"{_KEY}pre", str)
    if name not in _RULES:
        raise file.fail(f"{_KEY}pre={name!r:.80}; known: {', '.join(_RULES)}")
    return _RULES[name]


def _byte_pairs(file: GgufFile, rule: _Rule, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    end = 1 + max((number for number, kind in enumerate(types) if kind != _UNUSED), default=-1)
    vocabulary = {token: number for number, token in enumerate(tokens[:end])}
    merges = [_merged(merge) for merge in file.value(f"{_KEY}merges", list, [])]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule.ignores_merges))
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merged(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge, of which the first may be a space."""
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _pieces(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """Return SentencePiece's BPE: of all neighbours whose union is a piece, the best score goes first."""
    scores = file.value(f"{_KEY}scores", np.ndarray, np.zeros(0)).tolist()
    if len(scores) != len(tokens):
        raise file.fail(f"the tokenizer is incomplete: {len(tokens)} tokens, {len(scores)} scores")
    vocabulary = {token: number for number, token in enumerate(tokens) if types[number] != _UNUSED}
    normal = {token: number for token, number in vocabulary.items() if types[number] == _NORMAL}
    found = (
        (-scores[number], normal[token[:cut]], normal[token[cut:]], token[:cut], token[cut:])
        for token, number in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    )
    merges = sorted(islice(found, _MOST_MERGES + 1))
    if len(merges) > _MOST_MERGES:
        raise file.fail(f"{len(normal)} pieces join in more than {_MOST_MERGES} ways")
    model = models.BPE(
        vocabulary,
        [(left, right) for *_, left, right in merges],
        unk_token=next((token for token, number in vocabulary.items() if types[number] == _UNKNOWN), None),
        fuse_unk=True,
        byte_fallback=_BYTE in types,
    )
    tokenizer = Tokenizer(model)
    has_prefix = file.value(f"{_KEY}add_space_prefix", bool, True)
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer
