"""Measure how far INT8 and INT4 move the trained demonstration pair: ``python -m benchmarks.quantized_pair``.

Target and draft read modules of the standard library that were held out of their training, in windows of 256
tokens, and their logits are compared with those of their float32 engines. Then every pair of quantizations
answers held-out prompts in the real loop. The pair is not grown, and INT8 and INT4 have an INT8 output head.
The last line of standard output is JSON. Exit codes: 0 success; 1 error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.families.divergence import Divergence
from benchmarks.families.engines import NUM_BLOCKS, TokenIds, prompt_logits
from build.engines import build_engines
from build.quantization.corpus import load_corpus
from build.recipe import Quantization, load_recipe
from pipelines.bench.calibration.pair_acceptance import Answers, acceptance_rate, answer_prompts, interval
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.command_line.prompt_lengths import read_tokenizer
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program
from pipelines.text.prompt_tokenizer import PromptTokenizer

ROLES = ("target", "draft")
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "int4")
NUM_DRAFT_TOKENS, MAX_TOKENS, WINDOW = 4, 64, 256

_RECIPE = "demo"


def build_quantizations(folder: Path) -> dict[tuple[str, str], Path]:
    """Build both networks in every quantization, without growth; return engine directories."""
    recipe = load_recipe(_RECIPE)
    found: dict[tuple[str, str], Path] = {}
    for quantization in QUANTIZATIONS:
        engines = {
            role: replace(
                getattr(recipe, role),
                growth=None,
                quantization=quantization,
                lm_head="checkpoint" if quantization == "none" else "int8",
            )
            for role in ROLES
        }
        built = build_engines(replace(recipe, **engines), folder)
        found.update({(role, quantization): Path(built[role]) for role in ROLES})
    return found


def measure_divergence(
    engines: Mapping[str, Path], windows: Sequence[TokenIds]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compare the quantizations of one network with its float32 engine.

    Args:
        engines: Quantization -> engine directory, ``none`` among them.
        windows: Texts of 256 tokens.

    Returns:
        Quantization -> ``kl``, ``same_argmax`` and ``perplexity_ratio``, each with its 95 % interval over
        windows.
    """
    reference = Engine(EngineFiles(engines["none"]), NUM_BLOCKS)
    expected = [prompt_logits(reference, ids, WINDOW // 2) for ids in windows]
    found = {}
    for quantization, path in engines.items():
        engine = Engine(EngineFiles(path), NUM_BLOCKS)
        measured = [
            Divergence.measure(logits, prompt_logits(engine, ids, WINDOW // 2), ids)
            for ids, logits in zip(windows, expected, strict=True)
        ]
        found[quantization] = {
            "kl": _mean([each.kl for each in measured]),
            "same_argmax": _mean([each.same_argmax for each in measured]),
            "perplexity_ratio": _mean([each.lost_nats for each in measured], np.exp),
        }
    return found


def held_out_windows(tokenizer: PromptTokenizer, count: int) -> list[TokenIds]:
    """Return windows that are spread evenly over the modules that were held out of the training."""
    texts = [tokenizer.encode(document.text) for document in load_corpus().held_out]
    ids = np.concatenate(texts).astype(np.int32)
    return [ids[start : start + WINDOW] for start in np.linspace(0, len(ids) - WINDOW, count).astype(int)]


def measure_acceptance(
    engines: Mapping[tuple[str, str], Path], prompts: Sequence[TokenIds]
) -> list[dict[str, Any]]:
    """Answer the prompts greedily with every pair; ``change`` is that against the unquantized pair."""
    num_blocks = -(-(max(map(len, prompts)) + MAX_TOKENS + NUM_DRAFT_TOKENS) // 32)
    limits = ExecutorLimits(
        max_batch_size=len(prompts),
        max_num_tokens=512,
        max_seq_len=32 * num_blocks,
        max_queue_size=0,
        num_kv_blocks=2 + len(prompts) * num_blocks,
    )
    loaded = {key: Executor.load(path, limits) for key, path in engines.items()}

    def answers(target: str, draft: str) -> Answers:
        return answer_prompts(
            loaded["draft", draft],
            loaded["target", target],
            prompts,
            num_draft_tokens=NUM_DRAFT_TOKENS,
            max_tokens=MAX_TOKENS,
            temperature=0.0,
        )

    unquantized = answers("none", "none").counts

    def change(both: npt.NDArray[np.int64]) -> float:
        return acceptance_rate(both[:, :3]) - acceptance_rate(both[:, 3:])

    found = []
    for target, draft in itertools.product(QUANTIZATIONS, QUANTIZATIONS):
        made = answers(target, draft)
        both = np.concatenate([made.counts, unquantized], axis=1)
        found.append(
            {
                "target": target,
                "draft": draft,
                "acceptance_rate": made.acceptance_rate,
                "mean_acceptance_length": made.mean_acceptance_length,
                "change": change(both),
                "change_interval": interval(both, change),
            }
        )
    return found


def _mean(values: Sequence[float], scale: Callable[[Any], Any] = float) -> dict[str, Any]:
    samples = np.array(values)
    return {
        "value": float(scale(samples.mean())),
        "interval": interval(samples, lambda drawn: float(scale(drawn.mean()))),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized_pair", description=__doc__)
    parser.add_argument("--windows", type=int, default=200, help="windows of held-out text (%(default)s)")
    parser.add_argument("--prompts", type=int, default=128, help="held-out prompts (%(default)s)")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: list[str]) -> int:
    file = load_recipe(_RECIPE).prompts_path
    assert file is not None
    with tempfile.TemporaryDirectory() as folder:
        engines = build_quantizations(Path(folder))
        about = engine_conditions({" ".join(key): path for key, path in engines.items()})
        tokenizer = read_tokenizer(engines["target", "none"])
        windows = held_out_windows(tokenizer, options.windows)
        divergence = {
            role: measure_divergence({name: engines[role, name] for name in QUANTIZATIONS}, windows)
            for role in ROLES
        }
        lines = (file / "code.jsonl").read_text(encoding="utf-8").splitlines()[: options.prompts]
        prompts = [np.array(tokenizer.encode(json.loads(line)["text"]), np.int32) for line in lines]
        acceptance = measure_acceptance(engines, prompts)
    document = {
        "conditions": conditions("benchmarks.quantized_pair", given, recipe=_RECIPE, engines=about),
        "num_windows": len(windows),
        "window_tokens": WINDOW,
        "num_prompts": len(prompts),
        "num_draft_tokens": NUM_DRAFT_TOKENS,
        "max_tokens": MAX_TOKENS,
        "divergence": divergence,
        "acceptance": acceptance,
    }
    print(json.dumps(document))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
