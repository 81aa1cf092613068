"""Let a target answer prompts of our own and read code, and keep its hidden states and what it expects.

States are those that a server gives a head: of answers, row by row, as the target writes several of them
together; of prompts and of pieces of the standard library, as it reads them. Held-out texts are about modules
that no training text is about.

A text of n tokens is a file of ``numpy.save``, an array [n] with the fields ``token_id`` i32; ``features``
f16 [size], the hidden states there; ``expected_ids`` i32 [k], the most likely tokens behind, the likeliest
first, or -1 within a prompt; and ``logits`` f16 [k] of these.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from build.quantization.corpus import Document, load_corpus
from pipelines.atomic_file import whole_file
from pipelines.executor.engine import Engine, EngineConfig, StepEngine
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.executor.step import Chunk, pack, size_with_prompts
from pipelines.manifest import EngineFiles
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.prompt_tokenizer import PromptTokenizer

PARTS = "held-out", "training"
"""Folders of texts."""

Text = npt.NDArray[np.void]
"""A text as described above."""

Given = tuple[list[int], bool]
"""The beginning of a text, and whether it is a prompt, whose own tokens are not to be learned."""

_Blocks = tuple[int, ...]

_MAX_TOKENS, _PROMPT_TOKENS, _PIECE_TOKENS = 512, 300, 384  # at most, of a text and of what begins it
_NUM_TEXTS = 32  # that are written together
_HELD_OUT_TOKENS = 20_000
_PROMPTS_PER_PIECE = 4
_NUM_EXPECTED = 32
_WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("prompts.json").read_text("utf-8"))
_FUNCTION_SIZES = range(80, 1_000)  # characters
_MOST_CHARACTERS = 8  # of a token, in code
_LARGEST = float(np.finfo(np.float16).max)


def prompts(documents: Sequence[Document], chance: random.Random) -> Iterator[str]:
    """Yield prompts without end: sentences of ``prompts.json``, some of them about code of documents."""
    functions = []
    for document in documents:
        lines = document.text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(document.text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                code = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
                if len(code) in _FUNCTION_SIZES:
                    functions.append(code)

    def chosen(name: str) -> str:
        if name == "function":
            return chance.choice(functions)
        return re.sub(r"\{(\w+)\}", lambda match: chosen(match[1]), chance.choice(_WORDS[name]))

    known = set[str]()
    while True:
        prompt = chosen("prompt").strip()
        if prompt not in known:
            known.add(prompt)
            yield prompt


def beginnings(directory: Path, documents: Sequence[Document], seed: int) -> Iterator[Given]:
    """Yield without end what a target is given: prompts, and after some of them a piece of a document.

    Args:
        directory: Engine with the tokenizer and the chat template.
        documents: Sources of code.
        seed: Decides the choice.
    """
    path, chance = directory / "tokenizer.json", random.Random(seed)
    tokenizer = PromptTokenizer(path.read_bytes(), path)
    with ChatRenderer(ChatTemplate.read(directory)) as chat:
        for number, prompt in enumerate(prompts(documents, chance)):
            conversation = chat.render([{"role": "user", "content": prompt}], add_generation_prompt=True)
            token_ids = tokenizer.encode(conversation, parse_special_tokens=True)
            if len(token_ids) <= _PROMPT_TOKENS:
                yield token_ids, True
            if number % _PROMPTS_PER_PIECE == 0:
                code = chance.choice(documents).text
                begin = code.rfind("\n", 0, chance.randrange(len(code))) + 1
                token_ids = tokenizer.encode(code[begin:][: _PIECE_TOKENS * _MOST_CHARACTERS])
                yield token_ids[:_PIECE_TOKENS], False


def num_blocks(block_size: int) -> int:
    """Return how many KV blocks an engine needs."""
    return SCRATCH_BLOCK + 1 + _NUM_TEXTS * -(-_MAX_TOKENS // block_size)


def write_texts(engine: StepEngine, given: Iterable[Given]) -> Iterator[Text]:
    """Yield what is given, each continued by the likeliest tokens, in the order in which they end.

    Args:
        engine: The target, with ``feature_layers`` and ``num_blocks`` blocks.
        given: What the texts begin with, at least two tokens each.
    """
    blocks = np.arange(SCRATCH_BLOCK + 1, num_blocks(engine.config.kv_block_size)).reshape(_NUM_TEXTS, -1)
    free, waiting = list(map(tuple, blocks.tolist())), iter(given)
    growing: dict[_Blocks, list[Text]] = {}
    while True:
        while free and (begin := next(waiting, None)):
            token_ids, is_prompt = begin
            place = free.pop()
            growing[place] = []
            _compute(engine, {place: growing[place]}, [token_ids], 1 if is_prompt else len(token_ids))
        if not growing:
            return
        following = {each: int(parts[-1]["expected_ids"][-1, 0]) for each, parts in growing.items()}
        for each, token_id in following.items():
            if token_id in engine.config.end_ids or sum(map(len, growing[each])) == _MAX_TOKENS:
                free.append(each)
                yield np.concatenate(growing.pop(each))
        if growing:
            _compute(engine, growing, [[following[each]] for each in growing], 1)


def _compute(
    engine: StepEngine, growing: Mapping[_Blocks, list[Text]], token_ids: list[list[int]], num_logits: int
) -> None:
    """Compute new tokens of texts, equally many of each, a single one as a row."""
    new, block_size = np.array(token_ids, np.int32), engine.config.kv_block_size
    as_rows = new.shape[1] == 1
    slots = [blocks[0] // len(blocks) if engine.config.state_bytes else None for blocks in growing]
    chunks = [
        Chunk(some, sum(map(len, parts)), blocks, as_rows=as_rows, num_logits=num_logits, slot=slot)
        for some, slot, (blocks, parts) in zip(new, slots, growing.items(), strict=True)
    ]
    logits = engine.step(pack(chunks, block_size, 0 if as_rows else size_with_prompts(new.size)))
    best = torch.from_numpy(logits).topk(min(_NUM_EXPECTED, logits.shape[1]))
    assert engine.states is not None, "the engine has feature_layers"
    states, width = engine.states[: new.size], best.indices.shape[1]
    fields = [("token_id", "<i4"), ("features", "<f2", states.shape[1:])]
    texts = np.zeros(new.shape, [*fields, ("expected_ids", "<i4", width), ("logits", "<f2", width)])
    texts["token_id"] = new
    # The first token of a text may have larger numbers than float16 holds.
    texts["features"] = states.clip(-_LARGEST, _LARGEST).reshape(*new.shape, -1)
    texts["expected_ids"] = -1
    for name, values in (("expected_ids", best.indices), ("logits", best.values)):
        texts[name][:, -num_logits:] = values.numpy().reshape(len(new), num_logits, width)
    for text, parts in zip(texts, growing.values(), strict=True):
        parts.append(text)


def collect(directory: Path, data: Path, num_tokens: int) -> None:
    """Add texts to a folder until it has so many tokens of them to train on, and some that are held out.

    Args:
        directory: Engine of the target.
        data: The folder; a further run adds to it.
        num_tokens: Tokens to train on.
    """
    files, corpus = EngineFiles(directory), load_corpus()
    engine = Engine(files, num_blocks(EngineConfig.read(files).kv_block_size), num_slots=_NUM_TEXTS)
    sources = (corpus.held_out, _HELD_OUT_TOKENS), (corpus.library, num_tokens)
    for name, (documents, wanted) in zip(PARTS, sources, strict=True):
        (data / name).mkdir(parents=True, exist_ok=True)
        paths, started = list((data / name).glob("*.npy")), time.monotonic()
        size = begun = sum(len(np.load(path, mmap_mode="r")) for path in paths)
        texts = write_texts(engine, beginnings(directory, documents, seed=len(paths)))
        for number in count(len(paths)):
            if size >= wanted:
                break
            text = next(texts)
            with whole_file(data / name / f"{number:06}.npy") as made, made.open("wb") as file:
                np.save(file, text)
            size += len(text)
            if number % _NUM_TEXTS == 0:
                speed = (size - begun) / (time.monotonic() - started)
                print(f"{name}: {size:,} of {wanted:,} tokens, {speed:.1f} tokens/s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_head.collect", description=__doc__)
    parser.add_argument("engine", type=Path, help="engine of the target, built for a head")
    parser.add_argument("data", type=Path, help="folder of the texts; a further run adds to it")
    parser.add_argument("--tokens", type=int, required=True, help="tokens to train on")
    options = parser.parse_args(arguments)
    collect(options.engine, options.data, options.tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
