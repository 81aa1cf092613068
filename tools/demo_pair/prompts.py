"""Write the prompt sets of the demonstration as JSON lines; seed and corpus decide their content."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from build.quantization.corpus import Corpus, Document, module_name

PROMPT_TOKENS = 64
HELD_OUT_COUNT = 480
SMALL_COUNT = 72

_LICENCE = (
    "Permission to use, copy, modify, and distribute this software and its documentation for any purpose "
    "and without fee is hereby granted, provided that the above copyright notice appear in all copies and"
    " that both that copyright notice and this permission notice appear in supporting documentation. This"
    " software is provided as is, without warranty of any kind, express or implied, including but not "
    "limited to the warranties of merchantability, fitness for a particular purpose and noninfringement. "
    "In no event shall the authors be liable for any claim, damages or other liability, whether in an "
    "action of contract, tort or otherwise."
)
_SENTENCES = (
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ。",
    "El veloz murciélago hindú comía feliz cardillo y kiwi. ",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ",
    "نص حكيم له سر قاطع وذو شأن عظيم. ",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "🙂🚀 emoji ✅❌ and symbols ∀x∈ℝ: ⌈x⌉ ≥ x — “quoted”… ",  # noqa: RUF001
)
_WORDS = (
    "amber",
    "bolt",
    "cinder",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "iris",
    "jade",
    "kelp",
    "lumen",
)


def held_out_prompts(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> list[dict[str, Any]]:
    """Cut ``HELD_OUT_COUNT`` prompts at random token offsets, the same number from each module.

    A prompt must decode to valid text that encodes to the same ``PROMPT_TOKENS`` ids again.
    """
    random = np.random.default_rng(seed)
    streams = [(document, tokenizer.encode(document.text).ids) for document in corpus.held_out]
    found: dict[str, dict[str, Any]] = {}
    while len(found) < HELD_OUT_COUNT:
        document, ids = streams[len(found) % len(streams)]
        # Leave 128 tokens of the original after the prompt.
        begin = int(random.integers(0, len(ids) - PROMPT_TOKENS - 128))
        cut = ids[begin : begin + PROMPT_TOKENS]
        text = tokenizer.decode(cut)
        if "\ufffd" not in text and text not in found and tokenizer.encode(text).ids == cut:
            found[text] = {"module": module_name(document.path), "text": text}
    rows = list(found.values())
    return [
        {"id": f"heldout-{index:04d}", **rows[int(row)]}
        for index, row in enumerate(random.permutation(len(rows)))
    ]


def _docstrings(documents: Iterable[Document]) -> list[str]:
    """Return the longer docstrings of held-out modules, as English prose."""
    found: list[str] = []
    for document in documents:
        for node in ast.walk(ast.parse(document.text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= 200:
                    found.append(text)
    return found


def mixed_prompts(corpus: Corpus, held_out: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Make prompts of different lengths from held-out code, docstrings and the text of a licence."""
    random = np.random.default_rng(seed + 1)
    prose = _docstrings(corpus.held_out)
    words = _LICENCE.split()
    rows: list[dict[str, Any]] = []
    for index in range(SMALL_COUNT):
        kind = ("code", "prose", "licence", "short")[index % 4]
        if kind == "code":
            text = held_out[-1 - index]["text"]
        elif kind == "prose":
            docstring = prose[int(random.integers(len(prose)))]
            text = docstring[: int(random.integers(120, 400))].rstrip()
        elif kind == "licence":
            begin = int(random.integers(0, len(words) - 24))
            text = " ".join(words[begin : begin + int(random.integers(8, 24))])
        else:
            text = str(held_out[-1 - index]["text"]).strip()[: int(random.integers(1, 24))]
        rows.append({"id": f"mixed-{index:04d}", "kind": kind, "text": text})
    return rows


def adversarial_prompts(seed: int) -> list[dict[str, Any]]:
    """Make prompts outside the models' domain: random words, base64, digits and other scripts."""
    random = np.random.default_rng(seed + 2)
    rows: list[dict[str, Any]] = []
    for index in range(SMALL_COUNT):
        kind = ("words", "base64", "digits", "scripts", "punctuation", "whitespace")[index % 6]
        if kind == "words":
            letters = ["".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), 7)) for _ in range(24)]
            text = " ".join(letters)
        elif kind == "base64":
            text = base64.b64encode(random.bytes(96)).decode()
        elif kind == "digits":
            text = "".join(str(digit) for digit in random.integers(0, 10, 120))
        elif kind == "scripts":
            text = "".join(_SENTENCES[int(choice)] for choice in random.permutation(len(_SENTENCES))[:2])
        elif kind == "punctuation":
            text = "".join(random.choice(list("()[]{}<>;:,.!?@#$%^&*-+=|\\/~`'\""), 80))
        else:
            text = "x" + "".join(random.choice([" ", "\t", "\n", "\r\n", "\u00a0", "\u3000"], 40)) + "y"
        rows.append({"id": f"adversarial-{index:04d}", "kind": kind, "text": text})
    return rows


def repetitive_prompts(seed: int) -> list[dict[str, Any]]:
    """Make prompts that are likely to be continued by repetition: tables, lists and stanzas."""
    random = np.random.default_rng(seed + 3)
    rows: list[dict[str, Any]] = []
    for index in range(SMALL_COUNT):
        first, second, third = (_WORDS[int(choice)] for choice in random.permutation(len(_WORDS))[:3])
        number = int(random.integers(2, 90))
        kind = ("table", "list", "assignments", "stanza", "assertions", "same")[index % 6]
        if kind == "table":
            text = f"| {first} | {second} |\n" * 6
        elif kind == "list":
            text = f"{first} = [\n" + f"    ('{second}', {number}),\n" * 7
        elif kind == "assignments":
            text = "".join(f"        self.{first}_{step} = {second}_{step}\n" for step in range(5))
        elif kind == "stanza":
            text = f"    def {first}(self):\n        return self._{first}\n\n" * 3
        elif kind == "assertions":
            text = f"        self.assertEqual({first}({number}), '{third}')\n" * 4
        else:
            text = f"{first} " * 30
        rows.append({"id": f"repetitive-{index:04d}", "kind": kind, "text": text})
    return rows


def write_prompts(directory: Path, corpus: Corpus, tokenizer: Tokenizer, seed: int) -> None:
    """Write ``code``, ``mixed``, ``adversarial`` and ``repetitive`` ``.jsonl`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    held_out = held_out_prompts(corpus, tokenizer, seed)
    sets = {
        "code": held_out,
        "mixed": mixed_prompts(corpus, held_out, seed),
        "adversarial": adversarial_prompts(seed),
        "repetitive": repetitive_prompts(seed),
    }
    for name, rows in sets.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (directory / f"{name}.jsonl").write_text(lines, encoding="utf-8")
