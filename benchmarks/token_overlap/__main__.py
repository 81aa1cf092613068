"""Measure drafts that have a part of the target's tokens, under other ids.

``python -m benchmarks.token_overlap`` gives the demonstration pair's draft other ids and takes tokens away,
builds an engine of each such draft, and answers held-out prompts with it and with the target alone. All
answers must be those of the target alone. Acceptance is measured over all prompts together; then each prompt
is answered alone, with every draft in turn, and timed. The last line of standard output is JSON. Exit codes:
0 success; 1 an answer depends on its draft, or an engine cannot be used; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.token_overlap.partly_shared import share_part
from build.engines import build_engines
from build.preflight import check_recipe
from build.recipe import Recipe, load_recipe
from pipelines.bench.calibration.pair_acceptance import (
    Answers,
    acceptance_rate,
    answer_prompts,
    interval,
    mean_acceptance_length,
)
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import encode_prompts, read_tokenizer
from pipelines.errors import EngineFailedError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.token_ids import TokenIds

RECIPE = "demo"
NUM_PROMPTS = 16
PROMPT_TOKENS = 64
NUM_DRAFT_TOKENS = 4
TEMPERATURES = {"greedy": 0.0, "sampled": 0.8}
SIZES: tuple[int | None, ...] = (None, 2048, 1400, 1000, 700)
"""Tokens of each draft, of the target's 2,048; None for the draft as it is, with the target's ids."""

_ALONE = "alone"
_LONGER = 8  # times as many tokens of its own a draft may count in a text


@dataclass(frozen=True)
class Draft:
    """A draft whose engine is built.

    Attributes:
        num_tokens: Entry of ``SIZES``.
        share: Share of a sample text's tokens that it can propose.
        engine: Directory of its engine.
        target_engine: Directory of the target's engine, the same for all drafts.
    """

    num_tokens: int | None
    share: float
    engine: Path
    target_engine: Path


def make_draft(recipe: Recipe, num_tokens: int | None, folder: Path) -> Draft:
    """Write a checkpoint with a part of the draft's tokens, and build its engine.

    Args:
        recipe: The pair.
        num_tokens: Entry of ``SIZES``.
        folder: Folder for the checkpoint and all engines.
    """
    if num_tokens is not None:
        checkpoint = folder / f"draft-{num_tokens}"
        share_part(recipe.draft.checkpoint_directory, checkpoint, num_tokens)
        recipe = replace(recipe, draft=replace(recipe.draft, checkpoint=str(checkpoint)))
    source, _ = check_recipe(recipe, folder / "engines")
    built = build_engines(recipe, folder / "engines", print)
    share = 1.0 if source.token_map is None else source.token_map.share
    return Draft(num_tokens, share, Path(built["draft"]), Path(built["target"]))


def measure(drafts: Sequence[Draft], input_ids: Sequence[TokenIds], max_tokens: int) -> list[dict[str, Any]]:
    """Answer all prompts with every draft.

    Args:
        drafts: The drafts.
        input_ids: Token ids of the prompts.
        max_tokens: Longest answer, tokens.

    Returns:
        One document per draft.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        EngineFailedError: An answer is not that of the target alone.
    """
    length = PROMPT_TOKENS + max_tokens + NUM_DRAFT_TOKENS
    limits = ExecutorLimits(
        max_batch_size=len(input_ids),
        max_num_tokens=512,
        max_seq_len=length,
        max_queue_size=0,
        num_kv_blocks=2 + (len(input_ids) + _LONGER) * (1 + length // 32),
    )
    target = Executor.load(drafts[0].target_engine, limits)
    own = replace(limits, max_seq_len=_LONGER * length)
    loaded = [Executor.load(draft.engine, own) for draft in drafts]

    def answer(draft: Executor, prompts: Sequence[TokenIds], num_draft_tokens: int, how: str) -> Answers:
        return answer_prompts(
            draft,
            target,
            prompts,
            num_draft_tokens=num_draft_tokens,
            max_tokens=max_tokens,
            temperature=TEMPERATURES[how],
        )

    found: list[dict[str, Any]] = [{"num_tokens": draft.num_tokens, "share": draft.share} for draft in drafts]
    for how in TEMPERATURES:
        alone = answer(loaded[0], input_ids, 0, how)
        for document, draft in zip(found, loaded, strict=True):
            answers = answer(draft, input_ids, NUM_DRAFT_TOKENS, how)
            _check_same(answers, alone, document)
            document[how] = _acceptance(answers)
            print(f"{document['num_tokens'] or 'own ids'}, {how}: {answers.acceptance_rate:.3f}", flush=True)

    arms = {_ALONE: (loaded[0], 0), **{str(n): (each, NUM_DRAFT_TOKENS) for n, each in enumerate(loaded)}}
    seconds: dict[str, list[float]] = defaultdict(list)
    order = random.Random(0)
    for prompt in input_ids:
        for arm in order.sample(list(arms), len(arms)):
            executor, num_draft_tokens = arms[arm]
            began_s = time.perf_counter()
            answer(executor, [prompt], num_draft_tokens, "greedy")
            seconds[arm].append(time.perf_counter() - began_s)
    for number, document in enumerate(found):
        document["speed_up"] = _quartiles(
            [alone / own for alone, own in zip(seconds[_ALONE], seconds[str(number)], strict=True)]
        )
    return found


def _check_same(answers: Answers, alone: Answers, draft: Mapping[str, Any]) -> None:
    differing = [
        number
        for number, (mine, theirs) in enumerate(zip(answers.token_ids, alone.token_ids, strict=True))
        if not np.array_equal(mine, theirs)
    ]
    if differing:
        raise EngineFailedError(
            "an answer is not that of the target alone",
            values=f"draft with {draft['num_tokens']} tokens, prompts {differing[:8]}",
            limit="no draft changes an answer",
            remedy="this is a defect: keep the engines and report it",
        )


def _acceptance(answers: Answers) -> dict[str, Any]:
    return {
        "acceptance_rate": answers.acceptance_rate,
        "acceptance_rate_interval": interval(answers.counts, acceptance_rate),
        "mean_acceptance_length": answers.mean_acceptance_length,
        "mean_acceptance_length_interval": interval(answers.counts, mean_acceptance_length),
        "num_answers": len(answers.token_ids),
    }


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, method="inclusive")
    return {"median": statistics.median(values), "low": low, "high": high}


def _measure_and_print(max_tokens: int, command_line: list[str]) -> int:
    context = conditions("benchmarks.token_overlap", command_line, recipe=RECIPE)
    recipe = load_recipe(RECIPE)
    with tempfile.TemporaryDirectory(prefix="token-overlap-") as folder:
        drafts = [make_draft(recipe, num_tokens, Path(folder)) for num_tokens in SIZES]
        engines = {"draft": drafts[0].engine, "target": drafts[0].target_engine}
        prompts = choose_prompts(None, RECIPE).for_judging().of_largest_set().draw(NUM_PROMPTS)
        tokenizer = read_tokenizer(drafts[0].target_engine)
        encoded = encode_prompts(prompts.all, tokenizer, PROMPT_TOKENS).values()
        found = measure(drafts, [np.array(ids, np.int32) for ids in encoded], max_tokens)
        document = {
            "drafts": found,
            "num_draft_tokens": NUM_DRAFT_TOKENS,
            "max_tokens": max_tokens,
            "conditions": {**context, "engines": engine_conditions(engines), "prompts": prompts.document()},
        }
    print(json.dumps(document))
    return EXIT_PASS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_overlap", description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens per answer (%(default)s)")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options.max_tokens, command_line))


if __name__ == "__main__":
    sys.exit(main())
