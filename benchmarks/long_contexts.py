"""Measure speculation after long prompts of code: ``python -m benchmarks.long_contexts``.

Loads the pair of a recipe with OpenVINO's attention and with ours, in this process, with the loop and the
controller of a server. Continues held-out code of each length by the target alone and with the draft. Every
answer must equal that of the target alone. Speeds count from the first token of an answer to the last, after
both models have read the prompt, and in CPU time, which other programs hardly change. The last line of
standard output is JSON. Exit codes: 0 success; 1 an answer differs, or another error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.held_out_code import held_out_texts
from benchmarks.rehearsal.loaded_pair import Answer, LoadedPair
from build.engines import build_engines
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.rendering.template_values import calibration_file
from pipelines.bench.report.blocks import METHOD, Blocks
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.executor.limits import ExecutorLimits
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.token_ids import TokenIds

Attention = Literal["openvino", "draftproof"]
CONTEXTS = (512, 2048, 8192, 16384)
DRAFT_LENGTHS = (4, 8)
NUM_TOKENS = 96
NUM_TEXTS = 3
BLOCK_SIZE = 32
ALONE, ADAPTIVE = "target alone", "adaptive"


@dataclass(frozen=True)
class Timed:
    """An answer that was timed.

    Attributes:
        attention: Attention of both engines.
        context_len: Tokens of the prompt.
        arm: How it was written.
        text: Number of the text, which is the block of a comparison.
        answer: The answer.
    """

    attention: str
    context_len: int
    arm: str
    text: int
    answer: Answer


def build_pairs(recipe: Recipe, folder: Path) -> dict[str, dict[str, Path]]:
    """Build and calibrate the pair with both kinds of attention; return engine directories."""
    pairs: dict[str, dict[str, Path]] = {}
    for attention in get_args(Attention):
        draft, target = (replace(model, attention=attention) for model in (recipe.draft, recipe.target))
        built = build_engines(replace(recipe, draft=draft, target=target), folder, _say)
        pairs[attention] = {role: Path(built[role]) for role in ("draft", "target")}
        command = [sys.executable, "-m", "pipelines.bench.calibration", "--output"]
        command += [
            str(calibration_file(**{f"{role}_engine": each for role, each in pairs[attention].items()}))
        ]
        command += [part for role, each in pairs[attention].items() for part in (f"--{role}", str(each))]
        prompts = [] if recipe.prompts_path is None else ["--prompts", str(recipe.prompts_path)]
        subprocess.run([*command, *prompts], check=True, cwd=REPOSITORY_ROOT)
    return pairs


def time_answers(
    pairs: dict[str, LoadedPair], texts: Sequence[TokenIds], contexts: Sequence[int], num_tokens: int
) -> list[Timed]:
    """Answer the beginnings of each text with all arms in turn.

    Args:
        pairs: Pairs by attention, started.
        texts: Texts of at least the longest context.
        contexts: Lengths of prompts, ascending, so that each reuses the blocks of the one before.
        num_tokens: Tokens of each answer.

    Raises:
        EngineFailedError: An answer is not the target's own.
    """
    timed: list[Timed] = []
    for text, token_ids in enumerate(texts):
        for context_len in contexts:
            prompt = token_ids[:context_len]
            for attention, pair in pairs.items():
                expected = pair.alone(prompt, num_tokens)
                timed.append(_timed(attention, context_len, ALONE, text, expected))
                pair.read_by_draft(prompt)
                arms = {ADAPTIVE: None, **{f"K={count}": count for count in DRAFT_LENGTHS}}
                for name in np.roll(list(arms), text).tolist():  # each text begins with another arm
                    found = pair.own(prompt, expected, arms[name])
                    timed.append(_timed(attention, context_len, name, text, found))
    return timed


def _timed(attention: str, context_len: int, arm: str, text: int, answer: Answer) -> Timed:
    """Return the answer with what it belongs to, after a line about it."""
    found = Timed(attention, context_len, arm, text, answer)
    _say(json.dumps(asdict(found)))
    return found


def cells(timed: Sequence[Timed]) -> list[dict[str, Any]]:
    """Compare the arms of each attention and context, ready for JSON."""
    groups: dict[tuple[str, int], dict[str, list[Answer]]] = {}
    for each in timed:
        arms = groups.setdefault((each.attention, each.context_len), {})
        arms.setdefault(each.arm, []).append(each.answer)  # in the order of the texts
    return [
        {"attention": attention, "context_len": context_len, "arms": _compared(arms)}
        for (attention, context_len), arms in groups.items()
    ]


def _compared(arms: dict[str, list[Answer]]) -> dict[str, dict[str, Any]]:
    blocks = Blocks({arm: [1 / each.cpu_seconds_per_token for each in found] for arm, found in arms.items()})
    counts = ("num_drafted", "num_accepted", "num_rejected", "num_rounds")
    return {
        arm: {
            "ms_per_token": 1e3 * statistics.median(each.cpu_seconds_per_token for each in found),
            "wall_ms_per_token": 1e3 * statistics.median(each.seconds_per_token for each in found),
            "ratio_to_target": asdict(blocks.ratio(arm, ALONE)),
            **{name: sum(getattr(each, name) for each in found) for name in counts},
            "num_tokens": sum(len(each.token_ids) for each in found),
        }
        for arm, found in sorted(arms.items())
    }


def measure(options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    """Build, load and time the pairs; return the document."""
    recipe = load_recipe(options.recipe)
    engines = build_pairs(recipe, options.folder)
    # The load before loading, which takes both cores.
    about = conditions(
        "benchmarks.long_contexts",
        given,
        recipe=options.recipe,
        engines=engine_conditions(engines["draftproof"]),
    )
    longest = max(options.contexts)
    max_seq_len = longest + options.tokens
    limits = ExecutorLimits(
        max_batch_size=1,
        max_num_tokens=recipe.serving.max_num_tokens,
        max_seq_len=max_seq_len,
        max_queue_size=1,
        num_kv_blocks=2 * (max_seq_len // BLOCK_SIZE + 2),  # answers stay cached beside the prompt
    )
    with tempfile.TemporaryDirectory() as folder:
        pairs = {
            attention: LoadedPair(each["draft"], each["target"], Path(folder), limits, ())
            for attention, each in engines.items()
        }
        for pair in pairs.values():
            pair.start()
        texts = held_out_texts(engines["draftproof"]["target"], options.texts, longest)
        timed = time_answers(pairs, texts, sorted(options.contexts), options.tokens)
        for pair in pairs.values():
            pair.stop()
    return {
        "conditions": about,
        "max_tokens": options.tokens,
        "num_texts": options.texts,
        "ratio_method": METHOD,
        "cells": cells(timed),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_contexts", description=__doc__)
    parser.add_argument("--recipe", default="demo-long", help="name of a recipe, or path of a YAML file")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, help="tokens of the prompts")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="tokens of an answer (%(default)s)")
    parser.add_argument("--texts", type=int, default=NUM_TEXTS, help="texts, at least 2 (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=REPOSITORY_ROOT / "engines", help="engines (%(default)s)"
    )
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: Sequence[str]) -> int:
    print(json.dumps(measure(options, given)))
    return EXIT_PASS


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
