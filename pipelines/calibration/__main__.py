"""Measure what a pair's steps cost here, how its margins tell acceptance, and its acceptance to begin with.

``python -m pipelines.calibration --draft DIRECTORY --target DIRECTORY --output FILE``

Measures only what the file does not hold yet. Exit codes: 0 measured or there; 1 an engine cannot be
used; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from pipelines.acceptance_baseline import AcceptanceBaseline
from pipelines.calibration.acceptance import measure_acceptance
from pipelines.calibration.baseline import measure_baseline
from pipelines.calibration.step_costs import NUM_BLOCKS, measure_step_costs
from pipelines.errors import DraftproofError, EngineLoadError
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor, ExecutorLimits
from pipelines.prompts import HELD_OUT, read_prompts
from pipelines.speculation.calibration import Calibration
from pipelines.speculation.token_ids import TokenIds

_NUM_PROMPTS = 16
_PROMPT_TOKENS = 64
_LIMITS = ExecutorLimits(
    max_batch_size=_NUM_PROMPTS, max_num_tokens=512, max_seq_len=160, max_queue_size=0, num_kv_blocks=128
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    engines = options.draft, options.target
    try:
        if not _is_there(options.output):
            calibrate(*engines, options.max_rows, options.prompt_file).write(options.output)
        elif _has_baseline(options.output):
            return 0
        prompts = tokenized(options.target, options.prompt_file)
        measure_baseline(*load_executors(*engines), prompts).add_to(options.output)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"calibrated: {options.output}")
    return 0


def calibrate(draft_dir: Path, target_dir: Path, max_rows: int, prompt_file: Path = HELD_OUT) -> Calibration:
    """Measure a pair.

    Args:
        draft_dir: Engine.
        target_dir: Engine.
        max_rows: Rows of the largest step that serving makes.
        prompt_file: Texts to continue.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        InvalidRequestError: The prompts cannot be read.
    """
    costs = [measure_step_costs(Engine(path, NUM_BLOCKS), max_rows) for path in (draft_dir, target_dir)]
    prompts = tokenized(target_dir, prompt_file)
    rates, shares = measure_acceptance(*load_executors(draft_dir, target_dir), list(prompts.values()))
    return Calibration(costs[0], costs[1], rates, shares)


def load_executors(draft_dir: Path, target_dir: Path) -> tuple[Executor, Executor]:
    """Both engines of a pair, with room for the prompts; raises EngineLoadError."""
    return Executor.load(draft_dir, _LIMITS), Executor.load(target_dir, _LIMITS)


def tokenized(target_dir: Path, prompt_file: Path) -> dict[str, TokenIds]:
    """Name -> tokens of the prompts, cut to one length; raises InvalidRequestError."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target_dir / "tokenizer.json"))
    return {
        prompt.prompt_id: np.array(tokenizer.encode(prompt.text).ids[:_PROMPT_TOKENS], np.int32)
        for prompt in read_prompts(prompt_file, _NUM_PROMPTS)
    }


def _is_there(path: Path) -> bool:
    with suppress(EngineLoadError):  # missing, or of an older form
        Calibration.read(path)
        return True
    return False


def _has_baseline(path: Path) -> bool:
    with suppress(EngineLoadError):
        return AcceptanceBaseline.read(path) is not None
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.calibration", description="Measure a pair of engines."
    )
    parser.add_argument("--draft", type=Path, required=True, help="folder of the draft's engine")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target's engine")
    parser.add_argument("--max-rows", type=int, default=144, help="rows of the largest step (%(default)s)")
    parser.add_argument("--prompt-file", type=Path, default=HELD_OUT, help="texts to continue, JSON lines")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
