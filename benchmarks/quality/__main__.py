"""Measure what engines predict beside the values of their GGUF file and beside llama.cpp.

``python -m benchmarks.quality checkpoints/*.gguf --output docs/results/quality.json``. The engine ``none``
computes the values of the file in float32, ``checkpoint`` keeps the file's integers. The first engine and
llama.cpp are what the others are compared with, on modules of Python's standard library (code) and Debian's
copy of the GPL (prose), in windows of 512 tokens that are computed as prompts. Greedy text is compared with
llama.cpp's up to the first difference, where the top-2 gap says how close the choice was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Result, interval_cell, markdown, run_benchmark, say
from benchmarks.quality.engines import Logits, attention_for, compile_network, piece, step
from benchmarks.quality.llama_cpp import LlamaCpp
from benchmarks.quality.predictions import NUM_GREEDY, Greedy, Model, beside, surprises
from build.checkpoints.tokenizer_file import load_tokenizer
from build.networks.source import open_network
from build.recipe import EngineRecipe
from pipelines.available_resources import available_cores
from pipelines.bench.blocks import Interval
from pipelines.bench.reporting.conditions import conditions

LLAMA_CPP, FLOAT = "llama.cpp", "none"
ENGINES = (FLOAT, LLAMA_CPP, "checkpoint", "int8", "int4")

_WINDOW, _NUM_WINDOWS = 512, 2  # tokens of a window, and windows of each text
_PROMPT_LENGTHS = (64, 128)  # tokens at the beginning of a window that greedy text continues
_MODULES = ("heapq.py", "shlex.py")
_LICENCE, _SKIPPED = Path("/usr/share/common-licenses/GPL-3"), 3000

Windows = dict[str, list[list[int]]]
"""Tokens of the windows of each text; they begin as prompts do."""


@dataclass(frozen=True)
class Found:
    """Logits of the windows of each text, and texts, as an engine computed them."""

    logits: dict[str, list[Logits]]
    greedy: list[Greedy]


def _windows(checkpoint: Path) -> Windows:
    library = Path(sysconfig.get_path("stdlib"))
    code = "\n".join((library / name).read_text(encoding="utf-8") for name in _MODULES)
    texts = {"code": code, "prose": _LICENCE.read_text(encoding="utf-8")[_SKIPPED:]}
    tokenizer = load_tokenizer((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    begin = tokenizer.encode("").ids[:1]
    size = _WINDOW - len(begin)
    windows = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        windows[name] = [begin + ids[start : start + size] for start in range(0, _NUM_WINDOWS * size, size)]
    return windows


@contextmanager
def _model(file: Path, checkpoint: Path, engine: str) -> Iterator[Model]:
    if engine == LLAMA_CPP:
        with closing(LlamaCpp(file, _WINDOW, available_cores())) as model:
            yield model.logits
        return
    network = open_network(checkpoint, _WINDOW).read()
    cache = "float32" if engine == FLOAT else EngineRecipe(str(checkpoint)).kv_cache.dtype
    product = "openvino" if engine == FLOAT else "draftproof"
    with tempfile.TemporaryDirectory() as name:
        attention = attention_for(network.config)
        compiled = compile_network(Path(name, engine), network, engine, attention, cache, product)

    def logits(ids: list[int], start: int) -> Logits:
        chunk = piece(compiled, np.array(ids, np.int32), start, len(ids), is_decode=start > 0)
        return step(compiled, chunk)

    yield logits


def _computed(file: Path, checkpoint: Path, engine: str, windows: Windows) -> Found:
    with _model(file, checkpoint, engine) as model:
        logits = {text: [model(ids, 0) for ids in of_text] for text, of_text in windows.items()}
        if engine == FLOAT:  # each token reads four bytes a weight
            return Found(logits, [])
        every = [
            ids[:length] for of_text in windows.values() for ids in of_text for length in _PROMPT_LENGTHS
        ]
        return Found(logits, [Greedy.of(model, prompt) for prompt in every])


def _described(found: Found, references: Mapping[str, Found], windows: Windows) -> dict[str, Any]:
    """Return the figures of one engine, ready for JSON."""
    texts = {}
    for text, ids in windows.items():
        surprise = np.concatenate(list(map(surprises, found.logits[text], ids))).mean()
        compared = {
            name: asdict(beside(reference.logits[text], found.logits[text], ids))
            for name, reference in references.items()
        }
        texts[text] = {"perplexity": float(np.exp(surprise)), "beside": compared}
    described: dict[str, Any] = {"texts": texts}
    if found.greedy and LLAMA_CPP in references:
        pairs = zip(found.greedy, references[LLAMA_CPP].greedy, strict=True)
        described["first_differences"] = [one.first_difference(other) for one, other in pairs]
        described["median_gap"] = statistics.median(gap for each in found.greedy for gap in each.gaps)
    return described


def _ratio_rows(name: str, engines: Mapping[str, Any]) -> Iterator[list[str]]:
    for engine, described in engines.items():
        texts = described["texts"]
        for reference in next(iter(texts.values()))["beside"]:
            each = [found["beside"][reference] for found in texts.values()]
            ratios = [interval_cell(Interval(**found["perplexity_ratio"]), 3) for found in each]
            same = ", ".join(f"{found['same_argmax']:.1%}" for found in each)
            kl = ", ".join(f"{found['kl']:.1e}" for found in each)
            yield [name, engine, reference, *ratios, same, kl]


def _greedy_rows(name: str, engines: Mapping[str, Any]) -> Iterator[list[object]]:
    for engine, described in engines.items():
        if "first_differences" in described:
            texts = described["first_differences"]
            parted = [each for each in texts if each]
            equal = f"{len(texts) - len(parted)} of {len(texts)}"
            where = ", ".join(f"{each['position']} ({each['gap']:.2f})" for each in parted)
            yield [name, engine, equal, where, f"{described['median_gap']:.1f}"]


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.quality", command_line)
    files: dict[str, dict[str, Any]] = {}
    for file in options.files:
        checkpoint = EngineRecipe(str(file.resolve())).checkpoint_directory()
        windows = _windows(checkpoint)
        references: dict[str, Found] = {}
        engines = files[file.name] = {}
        for engine in options.engines:
            found = _computed(file, checkpoint, engine, windows)
            engines[engine] = _described(found, references, windows)
            say(f"{file.name}, {engine}: {json.dumps(engines[engine])}")
            if engine in (FLOAT, LLAMA_CPP):
                references[engine] = found
    heads = ["File", "Engine", "Beside", *(f"Perplexity, {text}, times" for text in windows)]
    ratios = [row for name, engines in files.items() for row in _ratio_rows(name, engines)]
    texts = [row for name, engines in files.items() for row in _greedy_rows(name, engines)]
    greedy_heads = ["File", "Engine", f"Greedy texts of {NUM_GREEDY} tokens as llama.cpp's"]
    greedy_heads += ["Others part after tokens (top-2 gap there)", "Median top-2 gap"]
    tables = markdown([*heads, "Same argmax", "KL, nats"], ratios), markdown(greedy_heads, texts)
    return Result("\n\n".join(tables), {"files": files, "conditions": about})


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="GGUF file")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=ENGINES[:3], help=f"default: {' '.join(ENGINES[:3])}"
    )
    return run_benchmark(parser, _measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
