"""Measure a pair's step times, its acceptance rate by margin, and its acceptance baseline.

``python -m pipelines.bench.calibration --draft DIRECTORY --target DIRECTORY --output FILE``

Measurements that the file contains already are not repeated; with other prompts, acceptance is measured
again. If other programs used the cores meanwhile, a warning says so, also when the file is used again. Exit
codes: 0 the file is complete; 1 an engine or the prompts cannot be used; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.bench.calibration.acceptance import fitting_tokens, measure_acceptance
from pipelines.bench.calibration.prompts import NUM_PROMPTS, calibration_prompts
from pipelines.bench.calibration.step_costs import PairCosts, blocks_needed, measure_step_costs
from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline
from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.options import add_prompts_option
from pipelines.command_line.prompt_lengths import count_tokens, encode_prompts, read_tokenizer
from pipelines.command_line.prompts import Prompts
from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import EngineLoadError
from pipelines.executor.engine import EngineConfig
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.draft_length.calibration import BUSY_LIMIT, Calibration
from pipelines.speculation.token_ids import TokenIds

_PROMPT_TOKENS = 64
_LOW_ACCEPTANCE = 0.05  # of four draft tokens each; a head that is right half of the time has 0.2
_LIMITS = ExecutorLimits(
    max_batch_size=NUM_PROMPTS, max_num_tokens=512, max_seq_len=160, max_queue_size=99, num_kv_blocks=128
)
# A draft with another tokenizer counts its own tokens, of which a text may have several times as many. It
# gets no more blocks for that: requests that find none wait.
_DRAFT_LIMITS = replace(_LIMITS, max_seq_len=8 * _LIMITS.max_seq_len)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    engines = options.draft, options.target
    folder = options.output.parent

    def work() -> int:
        prompts = render_chats(calibration_prompts(options.prompts), options.target)
        calibration = _calibration(options.output)
        sha256 = calibration.prompts_sha256 if calibration and _has_baseline(options.output) else None
        if calibration is None or sha256 != prompts.sha256:
            for line in count_tokens(prompts, read_tokenizer(options.target)).lines():
                _print_line(f"calibration {line}")
            pair = load_executors(*engines, folder, options.max_rows)
            costs = _known_costs(calibration) or _step_costs(*pair, options.max_rows)
            ids = prompt_tokens(options.target, prompts)
            found = measure_acceptance(*pair, ids, fitting_tokens(costs, len(ids)), _print_line)
            calibration = Calibration(
                costs.draft, costs.target, found.rates, found.shares, costs.busy_share, prompts.sha256
            )
            calibration.write(options.output)
            found.baseline.add_to(options.output)
            share = found.baseline.acceptance_rate
            print(f"calibrated, {share:.0%} of the draft's tokens accepted: {options.output}")
            if share < _LOW_ACCEPTANCE and pair[0].config.reads_features:
                _print_line("warning: few of its tokens are accepted; was the head trained for this target?")
        _warn_if_busy(calibration, options.output, options.recipe)
        return EXIT_PASS

    return run_program(work)


def _known_costs(calibration: Calibration | None) -> PairCosts | None:
    """Return the costs in a calibration, which do not depend on prompts."""
    if calibration is None:
        return None
    return PairCosts(calibration.draft, calibration.target, calibration.busy_share)


def _step_costs(draft: Executor, target: Executor, max_rows: int) -> PairCosts:
    """Time the steps of executors that have computed nothing: what their caches hold is overwritten."""
    return measure_step_costs(draft.engine, target.engine, max_rows, _print_line)


def load_executors(
    draft_dir: Path, target_dir: Path, folder: Path | None = None, max_rows: int = 0
) -> tuple[Executor, Executor]:
    """Load both engines of a pair with enough KV blocks for the prompts and for timing steps.

    Args:
        draft_dir: Engine directory of the draft.
        target_dir: Engine directory of the target.
        folder: See ``engine.Engine``.
        max_rows: Rows of the largest step that will be timed.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """

    def load(directory: Path, limits: ExecutorLimits) -> Executor:
        config = EngineConfig.read(EngineFiles(directory))
        enough = replace(limits, num_kv_blocks=max(limits.num_kv_blocks, blocks_needed(config, max_rows)))
        if config.state_bytes:  # at most the places of the server, whose states the memory plan counts
            enough = replace(enough, max_batch_size=min(NUM_PROMPTS, max(max_rows // MAX_LOGGED_ROWS, 1)))
        return Executor.load(directory, enough, weights_folder=folder)

    with ThreadPoolExecutor() as pool:
        draft, target = pool.map(load, (draft_dir, target_dir), (_DRAFT_LIMITS, _LIMITS))
    return draft, target


def prompt_tokens(target_dir: Path, prompts: Prompts) -> dict[str, TokenIds]:
    """Return name -> 64 tokens of each prompt (``encode_prompts``); raises EngineLoadError."""
    ids = encode_prompts(prompts.all, read_tokenizer(target_dir), _PROMPT_TOKENS)
    return {name: np.array(tokens, np.int32) for name, tokens in ids.items()}


def _calibration(path: Path) -> Calibration | None:
    with suppress(EngineLoadError):  # it is missing or has an older format
        return Calibration.read(path)
    return None


def _warn_if_busy(calibration: Calibration, path: Path, recipe: str) -> None:
    if calibration.was_busy:
        again = f"rm {shlex.quote(str(path))} && draftproof repository --recipe {shlex.quote(recipe)}"
        _print_line(
            "warning: other programs used the cores while the pair was calibrated, so its step times are "
            f"estimates and serving may be slower; busy_share={calibration.busy_share:.2f} in {path}; "
            f"at most {BUSY_LIMIT}; when the machine is idle, run: {again}"
        )


def _print_line(line: str) -> None:
    print(line, flush=True)


def _has_baseline(path: Path) -> bool:
    with suppress(EngineLoadError):
        AcceptanceBaseline.read(path)
        return True
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.bench.calibration", description="Measure a pair of engines."
    )
    parser.add_argument("--draft", type=Path, required=True, help="folder of the draft's engine")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target's engine")
    parser.add_argument("--max-rows", type=int, default=144, help="rows of the largest step (%(default)s)")
    parser.add_argument("--recipe", default="demo", help="recipe of the pair, for messages (%(default)s)")
    add_prompts_option(parser)
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
