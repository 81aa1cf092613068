"""Read what a ``tokenizer.json`` does: its identity, its size and its end tokens.

Two files that do the same can have different bytes: newer versions of the ``tokenizers`` package write a
merge as ``["a", "b"]`` and older ones as ``"a b"``, and fields with their default value may be absent. So a
file is loaded as it is when it serves, and the result is compared: vocabulary, merges and settings of the
model, added tokens, and the ids of ``CORPUS``. Normalization and pre-tokenization are compared only by these
ids. That is enough for a pair: draft and target exchange ids, and only the target's tokenizer reads text.
Truncation and padding are left out, because they belong to a training run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from build.checkpoints.settings import read_json
from pipelines.errors import CheckpointError
from pipelines.manifest import sha256_json

END_TOKENS = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"),
    *("<end_of_turn>", "<eos>", "<|end|>"),
)
"""Tokens that end a text, a turn or a message in the supported model families."""

CORPUS = (
    "", " ", "  ", "\n", "\r\n", "\t\t x", " leading", "trailing ", "a  b   c    d", "\n\n\n  \n",
    "\u00a0x\u2003y", "Hello, world!", "don't I'LL we've THEY'RE", "camelCase snake_case SCREAMING",
    "antidisestablishmentarianism", "0 1 12 123 1234 12345678901234567890", "3.14e-10 1,000,000 0xFF 1/2",
    "2026-11-22T22:10:00Z", "def f(x):\n    return x  # why\n", "if (a != b && c >= d) { i++; }",
    '{"key": [1, null, "\\n"]}', "https://example.org/a?b=c&d=%20#e", "\\frac{a}{b} $x^2$",
    "<p class='x'>&nbsp;</p>", "---===***///", "na\u00efve caf\u00e9", "nai\u0308ve cafe\u0301",
    "\ufb01n \uff21\uff22 \u2460 \u00bd", "Stra\u00dfe \u0130stanbul", "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u05e9\u05dc\u05d5\u05dd",
    "\u043f\u0440\u0438\u0432\u0435\u0442", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\U0001d4b3\U0001d4b4",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "a\u200bb\ufeffc\u202ed", "\x00\x1c\x7f", "\ufffd\ue000", "\u2581x \u0120y", "<0x0A><0xE2>", "x" * 70,
    "<s>[INST] hi [/INST]</s>", "<|endoftext|><|im_start|>user\n", "<|begin_of_text|><|eot_id|> <unk>",
)  # fmt: skip
"""Strings that tokenizers of different families, versions and settings split differently."""

SENTENCEPIECE = "tokenizer.model"
GENERATION_CONFIG = "generation_config.json"
MOST_TOKENIZER_BYTES = 1 << 28
"""Bytes of a ``tokenizer.json``; that of Gemma, with 262,144 tokens, has an eighth."""


@dataclass(frozen=True)
class TokenizerInfo:
    """Identity, size and end tokens of a tokenizer.

    Attributes:
        path: The file.
        sha256: Hash of what it does, independent of how the file spells it.
        num_tokens: Highest id + 1 of the tokens that stand for text. Special ones may lie behind the
            network's vocabulary: text models of Gemma 3 keep the token for images, which no text contains.
        end_ids: Ids of those ``END_TOKENS`` that it has.
        num_ids: Highest id + 1 of all tokens.
        added_ids: Ids of the added tokens by their names.
    """

    path: Path
    sha256: str
    num_tokens: int
    end_ids: tuple[int, ...]
    num_ids: int
    added_ids: Mapping[str, int] = field(default_factory=dict)


def read_tokenizer(path: Path) -> TokenizerInfo:
    """Read a Hugging Face ``tokenizer.json``.

    Raises:
        CheckpointError: The file is missing or is not a tokenizer.
    """
    if not path.is_file() and (path.parent / SENTENCEPIECE).is_file():
        raise without_conversion(path.parent)
    try:
        if path.stat().st_size > MOST_TOKENIZER_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes, of at most {MOST_TOKENIZER_BYTES}")
        return TokenizerInfo(path, *_identity(path.read_text(encoding="utf-8")))
    except BaseException as error:  # the package tokenizers raises nothing more specific, or panics
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise CheckpointError(
            f"{path} is not a valid tokenizer: {type(error).__name__}: {error!s:.200}",
            "download the model's tokenizer.json into the checkpoint directory",
        ) from None


def without_conversion(directory: Path) -> CheckpointError:
    """Return the error of a checkpoint whose tokenizer is in SentencePiece's own format."""
    load = f"AutoTokenizer.from_pretrained({str(directory)!r})"
    return CheckpointError(
        f"{directory} has {SENTENCEPIECE} and no tokenizer.json, which alone is read",
        "convert it: pip install transformers sentencepiece protobuf && python -c "
        f'"from transformers import AutoTokenizer; {load}.save_pretrained({str(directory)!r})"',
    )


@lru_cache(maxsize=2)  # draft and target mostly have the same file, and 128,000 tokens take seconds
def _identity(content: str) -> tuple[str, int, tuple[int, ...], int, Mapping[str, int]]:
    document = json.loads(content)
    added = {str(token["content"]): int(token["id"]) for token in document.get("added_tokens", ())}
    vocabulary = document["model"]["vocab"]
    # Unigram lists [piece, score]; the id is the position.
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    special = {int(token["id"]) for token in document.get("added_tokens", ()) if token.get("special")}
    all_ids = {*ids, *added.values()}
    num_tokens = 1 + max(all_ids - special, default=-1)
    end_ids = tuple(added[token] for token in END_TOKENS if token in added)
    return (
        sha256_json(_behaviour(load_tokenizer(content))),
        max(num_tokens, *(1 + each for each in end_ids), 0),
        end_ids,
        1 + max(all_ids, default=-1),
        added,
    )


def load_tokenizer(content: str) -> Tokenizer:
    """Load the content of a ``tokenizer.json``, without the truncation and padding of a training run."""
    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _behaviour(tokenizer: Tokenizer) -> dict[str, dict[Any, Any]]:
    """Return everything that is compared."""
    document = json.loads(tokenizer.to_str())  # one spelling, and every default is there
    model = document["model"]
    pieces, merges = model.pop("vocab"), model.pop("merges", ())
    ids = {text: tokenizer.encode(text).ids for text in CORPUS}
    return {
        "ids of": ids,
        "text of the ids of": {
            text: tokenizer.decode(found, skip_special_tokens=False) for text, found in ids.items()
        },
        "id of token": tokenizer.get_vocab(),
        "added token": {token["content"]: token for token in document["added_tokens"]},
        "merge": dict(enumerate(merges)),
        "score of token": dict(enumerate(pieces)) if isinstance(pieces, list) else {},
        # A prefix or suffix that is empty does what none does.
        "model setting": {name: None if value == "" else value for name, value in model.items()},
    }


def find_end_ids(directory: Path, tokenizer: TokenizerInfo, vocab_size: int) -> tuple[int, ...]:
    """Return all tokens that end a text.

    They are read from ``generation_config.json``, else from ``config.json``; if neither names any, they are
    the known end tokens of the tokenizer. ``generation_config.json`` comes first because it is often the only
    complete list: Llama 3's instruct models end at three tokens, and ``config.json`` of some releases names
    one of them. The tokenizer's own ``eos_token`` always counts, as in vLLM: chat templates end a turn with
    it, and models that were tuned for chat may keep the base model's list.

    Args:
        directory: A checkpoint of Hugging Face or TensorRT-LLM.
        tokenizer: Tokenizer of that checkpoint.
        vocab_size: Rows of its embedding.

    Returns:
        At least one id, without duplicates, in the order of the file. Callers that support a single end token
        use the first.

    Raises:
        CheckpointError: There is no end token, or an end token is not in the vocabulary.
    """
    named = _named(directory) or tokenizer.end_ids
    end_ids = tuple(dict.fromkeys([*named, *_eos_token(directory, tokenizer)]))
    num_ids = min(tokenizer.num_ids, vocab_size)
    if not end_ids or max(end_ids) >= num_ids:
        raise CheckpointError(
            f"{directory} has no valid end tokens among {num_ids} tokens: "
            f"{', '.join(map(str, end_ids[:9])) or 'none'} in {GENERATION_CONFIG} or config.json, and none "
            f"of {', '.join(END_TOKENS)} among the tokenizer's added tokens",
            "set eos_token_id in config.json, or end_ids in that of a TensorRT-LLM checkpoint",
        )
    return end_ids


def _named(directory: Path) -> tuple[int, ...]:
    """Return the end tokens that the JSON files name, if any."""
    generation, config = directory / GENERATION_CONFIG, directory / "config.json"
    places = [(generation, "eos_token_id")] if generation.is_file() else []
    places += [(config, key) for key in ("eos_token_id", "end_ids", "end_id")]
    for path, key in places:
        end_ids = _ids(read_json(path), key, path)
        if end_ids:
            return end_ids
    return ()


def _eos_token(directory: Path, tokenizer: TokenizerInfo) -> list[int]:
    """Return the id of the ``eos_token`` in ``tokenizer_config.json``, if it has one."""
    path = directory / "tokenizer_config.json"
    token = read_json(path).get("eos_token") if path.is_file() else None
    name = token.get("content") if isinstance(token, dict) else token
    return [tokenizer.added_ids[name]] if isinstance(name, str) and name in tokenizer.added_ids else []


def _ids(document: Mapping[str, Any], key: str, path: Path) -> tuple[int, ...]:
    value = document.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(end_id, bool) or not isinstance(end_id, int) or end_id < 0 for end_id in found):
        raise CheckpointError(
            f"{path} has {key}={value!r:.80}, which is neither a token id nor a list of them",
            "download the file again, or correct the key",
        )
    return tuple(dict.fromkeys(found))
