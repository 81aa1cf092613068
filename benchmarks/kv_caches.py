"""Compare types of KV cache: bytes, divergence, agreement of the draft, and step time by context length.

``python -m benchmarks.kv_caches --recipe demo-large`` builds the pair and runs both engines with each type of
cache, on texts that calibration does not see. Each position is compared with the target with a cache in
float32: how much the target's distribution differs, and how often the draft chooses the same token. A step's
time is the CPU time of its busiest thread, which other programs hardly change. The last line of standard
output is JSON. Exit codes: 0 success; 1 an error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.openvino.engine import KV_PROPERTIES
from pipelines.bench.calibration.step_times import time_step
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.building import build_recipe
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import encode_prompts, read_tokenizer
from pipelines.engine_memory import block_bytes
from pipelines.errors import RecipeError
from pipelines.executor.engine import Engine, EngineConfig
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.token_map import TOKEN_MAP_FILE

CONTEXTS = (64, 2048, 8192)
ROWS = (1, 5, 9)
PROMPT_TOKENS = 64
_STEPS = 5
Logits = npt.NDArray[np.float64]


def load(files: EngineFiles, dtype: str, num_blocks: int) -> Engine:
    """Load an engine with another type of cache than it was built with."""
    config = EngineConfig.read(files)
    properties = {**config.compile_properties, **KV_PROPERTIES[dtype]}
    return Engine(files, num_blocks, replace(config, compile_properties=properties, kv_cache_dtype=dtype))


def log_probs(engine: Engine, texts: Sequence[TokenIds]) -> Logits:
    """Return the log probabilities behind each token of each text, float64 [positions, vocab_size]."""
    found = []
    size = engine.config.kv_block_size
    for text in texts:
        chunk = Chunk(text, 0, range(1, 2 + len(text) // size), as_rows=False, num_logits=len(text))
        logits = engine.step(pack([chunk], size)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return np.concatenate(found)


def divergence(expected: Logits, found: Logits) -> dict[str, float]:
    """Return mean and 99th percentile of KL(expected, found) in nats, and the share of equal choices."""
    kl = (np.exp(expected) * (expected - found)).sum(axis=1)
    same = expected.argmax(axis=1) == found.argmax(axis=1)
    return {"kl": float(kl.mean()), "kl_p99": float(np.quantile(kl, 0.99)), "top1": float(same.mean())}


def step_ms(engine: Engine, tokens: int, context_len: int, *, as_rows: bool) -> float:
    """Return the median CPU time of a step's busiest thread, milliseconds."""
    size = engine.config.kv_block_size
    blocks = range(1, 2 + (context_len + tokens) // size)
    token_ids = np.ones(tokens, np.int32)
    chunk = Chunk(token_ids, context_len, blocks, as_rows=as_rows, num_logits=tokens if as_rows else 1)
    step = partial(engine.step, pack([chunk], size))
    step()  # creates the kernels
    return 1e3 * statistics.median(time_step(step).busiest_s for _ in range(_STEPS))


def measure(
    target: EngineFiles, draft: EngineFiles, texts: Sequence[TokenIds], contexts: Sequence[int]
) -> list[dict[str, Any]]:
    """Measure each type of cache.

    Args:
        target: The engine.
        draft: The engine of its draft, which reads the same tokens.
        texts: int32 tokens of each text.
        contexts: Cached positions before a step that is timed.
    """
    caches: list[dict[str, Any]] = []
    config = EngineConfig.read(target)
    size = config.kv_block_size
    num_blocks = 3 + (max(contexts) + PROMPT_TOKENS) // size
    expected: Logits | None = None
    for dtype in KV_PROPERTIES:
        engine = load(target, dtype, num_blocks)
        found = log_probs(engine, texts)
        expected = found if expected is None else expected
        drafted = log_probs(load(draft, dtype, num_blocks), texts).argmax(axis=1)
        sizes = config.num_layers, config.num_kv_heads, config.head_size
        steps = [
            {
                "context_len": context_len,
                "rows_ms": [step_ms(engine, rows, context_len, as_rows=True) for rows in ROWS],
                "prompt_ms": step_ms(engine, PROMPT_TOKENS, context_len, as_rows=False),
            }
            for context_len in contexts
        ]
        cache = {
            "dtype": dtype,
            "bytes_per_token": block_bytes(1, *sizes, dtype),
            **divergence(expected, found),
            "draft_agreement": float((drafted == expected.argmax(axis=1)).mean()),
            "steps": steps,
        }
        print(json.dumps(cache), flush=True)
        caches.append(cache)
    return caches


def check_caches(role: str, files: EngineFiles, recipe: str) -> None:
    """Raise RecipeError if an engine takes no other cache, or reads other tokens than the target."""
    if EngineConfig.read(files).attention == "draftproof":
        raise RecipeError(
            f"this {role}'s cache belongs to its attention",
            values=f"attention: draftproof in {recipe}",
            limit="only with OpenVINO's attention does an engine take another type of cache",
            remedy="use a recipe with 'attention: openvino'",
        )
    if TOKEN_MAP_FILE in files.manifest["files"]:
        raise RecipeError(
            f"this {role} reads tokens of its own",
            values=f"recipe {recipe}",
            limit="both engines read the same tokens of the texts",
            remedy="use a recipe whose draft has the target's tokenizer",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_caches", description=__doc__)
    parser.add_argument("--recipe", default="demo-large", help="name of a recipe, or path of a YAML file")
    parser.add_argument("--num-texts", type=int, default=16, help="texts for the divergence (%(default)s)")
    parser.add_argument("--text-tokens", type=int, default=400, help="most tokens of a text (%(default)s)")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, help="context lengths")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: list[str]) -> int:
    built = build_recipe("build.engines", options.recipe, partial(print, flush=True))
    engines = {role: Path(built[role]) for role in ("target", "draft")}
    files = {role: EngineFiles(engine) for role, engine in engines.items()}
    for role, of_role in files.items():
        check_caches(role, of_role, options.recipe)
    prompts = choose_prompts(None, options.recipe).for_judging().of_largest_set().draw(options.num_texts)
    encoded = encode_prompts(prompts.all, read_tokenizer(engines["target"]), options.text_tokens)
    texts = [np.array(ids, np.int32) for ids in encoded.values()]
    document = {
        "num_positions": sum(map(len, texts)),
        "rows": ROWS,
        "prompt_tokens": PROMPT_TOKENS,
        "caches": measure(files["target"], files["draft"], texts, options.contexts),
        "conditions": conditions(
            "benchmarks.kv_caches",
            given,
            recipe=options.recipe,
            engines=engine_conditions(engines),
        ),
    }
    print(json.dumps(document))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
