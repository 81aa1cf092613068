"""Predict on a CPU how quantizing draft and target changes acceptance.

``draftproof acceptance`` builds missing engines first. It prints one line per pair, and a JSON document with
the conditions as the last line. Exit codes: 0 success; 1 error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.bench.calibration.pair_acceptance import (
    Answers,
    acceptance_rate,
    answer_prompts,
    interval,
    mean_acceptance_length,
    same_choices,
)
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.building import build_recipe
from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.given_prompts import add_prompts_option
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import count_tokens, encode_prompts, read_tokenizer
from pipelines.command_line.prompts import Prompts
from pipelines.errors import EngineFailedError
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.token_ids import TokenIds

_PROMPT_TOKENS = 64
_GREEDY = 0.0
_TEMPERATURES = (_GREEDY, 0.8)
_REFERENCE = "none"
_BLOCK = 32


def measure(
    engines: Mapping[str, Any], prompts: Prompts, num_draft_tokens: int, max_tokens: int
) -> dict[str, Any]:
    """Answer the prompts with every pair of quantizations.

    Args:
        engines: ``draft`` and ``target``: quantization -> engine directory, ``none`` first.
        prompts: Prompts with conversations rendered, of which 64 tokens are used.
        num_draft_tokens: Draft tokens per round.
        max_tokens: Longest answer, tokens.

    Returns:
        ``pairs`` and ``agreement``, ready for JSON.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        EngineFailedError: The output of a target depended on the draft.
    """
    targets = {name: Path(path) for name, path in engines["target"].items()}
    drafts = {name: Path(path) for name, path in engines["draft"].items()}
    encoded = encode_prompts(prompts.all, read_tokenizer(targets[_REFERENCE]), _PROMPT_TOKENS)
    input_ids = [np.array(ids, np.int32) for ids in encoded.values()]
    length = _PROMPT_TOKENS + max_tokens
    limits = ExecutorLimits(
        max_batch_size=len(input_ids),
        max_num_tokens=512,
        max_seq_len=length + num_draft_tokens,
        max_queue_size=0,
        num_kv_blocks=2 + len(input_ids) * (1 + -(-(length + num_draft_tokens) // _BLOCK)),
    )
    loaded = {
        (role, name): Executor.load(path, limits)
        for role, paths in (("draft", drafts), ("target", targets))
        for name, path in paths.items()
    }
    pairs: list[dict[str, Any]] = []
    texts: dict[tuple[float, str], tuple[TokenIds, ...]] = {}
    first: dict[float, Answers] = {}
    for temperature, target, draft in itertools.product(_TEMPERATURES, targets, drafts):
        answers = answer_prompts(
            loaded["draft", draft],
            loaded["target", target],
            input_ids,
            num_draft_tokens=num_draft_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        _check_same(texts.setdefault((temperature, target), answers.token_ids), answers, target, draft)
        unquantized = first.setdefault(temperature, answers)
        pairs.append(
            {
                "draft": draft,
                "target": target,
                "temperature": temperature,
                **_figures(answers),
                **_change(answers, unquantized),
            }
        )
        print(
            f"temperature {temperature}, target {target}, draft {draft}: acceptance rate "
            f"{answers.acceptance_rate:.3f}, mean acceptance length {answers.mean_acceptance_length:.2f}",
            flush=True,
        )
    same = same_choices(
        {name: Engine(EngineFiles(path), 2 + -(-length // _BLOCK)) for name, path in targets.items()},
        _REFERENCE,
        input_ids,
        texts[_GREEDY, _REFERENCE],
    )
    agreement = [
        {
            "target": name,
            "same_argmax": _share(counts),
            "same_argmax_interval": interval(counts, _share),
            "positions": int(counts[:, 1].sum()),
        }
        for name, counts in same.items()
    ]
    return {"pairs": pairs, "agreement": agreement}


def _check_same(expected: Sequence[TokenIds], answers: Answers, target: str, draft: str) -> None:
    """Check that the output depends only on the target, because otherwise the loop has a defect."""
    differing = [
        number
        for number, (mine, theirs) in enumerate(zip(answers.token_ids, expected, strict=True))
        if not np.array_equal(mine, theirs)
    ]
    if differing:
        raise EngineFailedError(
            "the output of a target depends on the draft",
            values=f"target {target}, draft {draft}, prompts {differing[:8]}",
            limit="the output must be the same with every draft",
            remedy="this is a defect: keep the engines and report it",
        )


def _figures(answers: Answers) -> dict[str, Any]:
    counts = answers.counts
    accepted, drafted, rounds = (int(total) for total in counts.sum(axis=0))
    return {
        "acceptance_rate": answers.acceptance_rate,
        "acceptance_rate_interval": interval(counts, acceptance_rate),
        "mean_acceptance_length": answers.mean_acceptance_length,
        "mean_acceptance_length_interval": interval(counts, mean_acceptance_length),
        "total_accepted_draft_tokens": accepted,
        "total_draft_tokens": drafted,
        "num_drafting_rounds": rounds,
    }


def _change(answers: Answers, unquantized: Answers) -> dict[str, Any]:
    """Return the difference to the unquantized pair, with an interval from paired resampling of prompts."""

    def difference(both: npt.NDArray[np.int64]) -> float:
        return acceptance_rate(both[:, :3]) - acceptance_rate(both[:, 3:])

    both = np.concatenate([answers.counts, unquantized.counts], axis=1)
    return {
        "acceptance_rate_change": difference(both),
        "acceptance_rate_change_interval": interval(both, difference),
    }


def _share(counts: npt.NDArray[np.int64]) -> float:
    same, positions = counts.sum(axis=0)
    return float(same / positions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: list[str]) -> int:
    judged = choose_prompts(options.prompts, options.recipe).for_judging().of_largest_set()
    engines = build_recipe("build.variants", options.recipe, report=partial(print, flush=True))
    about = {
        f"{role} {name}": Path(path) for role in ("target", "draft") for name, path in engines[role].items()
    }
    recipe = engines["recipe"]
    target = about[f"target {_REFERENCE}"]
    rendered = render_chats(judged.draw(options.num_prompts), target)
    prompts = count_tokens(rendered, read_tokenizer(target))
    for line in prompts.lines():
        print(line)
    started_s = time.monotonic()
    document = {
        "recipe": recipe,
        "num_prompts": len(prompts.all),
        "prompt_tokens": _PROMPT_TOKENS,
        "max_tokens": options.max_tokens,
        "num_draft_tokens": options.num_draft_tokens,
        "conditions": conditions(
            "pipelines.bench.calibration.quantizations",
            given,
            recipe=recipe,
            engines=engine_conditions(about),
            prompts=prompts.document(),
        ),
    }
    figures = measure(engines, prompts, options.num_draft_tokens, options.max_tokens)
    document.update(figures, seconds=round(time.monotonic() - started_s, 1))
    print(json.dumps(document))
    return EXIT_PASS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof acceptance",
        description="Predict how quantizing draft and target changes acceptance.",
    )
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    add_prompts_option(parser)
    parser.add_argument("--num-prompts", type=_positive, default=128, help="most prompts (%(default)s)")
    parser.add_argument(
        "--num-draft-tokens", type=_positive, default=4, help="draft tokens per round (%(default)s)"
    )
    parser.add_argument("--max-tokens", type=_positive, default=64, help="tokens per answer (%(default)s)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
