"""Predict what quantizing draft and target does to acceptance, on a CPU.

``python -m build.variants --recipe demo | tail -n 1 | python -m pipelines.calibration.quantizations``

Standard input says where the engines are, as ``build.variants`` ends. Prints a table, and as the last line
of standard output a JSON document with the conditions. Exit codes: 0 measured; 1 it could not be; 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.calibration.pair_acceptance import (
    Answers,
    acceptance_rate,
    answer_prompts,
    interval,
    mean_acceptance_length,
    same_choices,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError, EngineFailedError
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor, ExecutorLimits
from pipelines.prompts import HELD_OUT, read_prompts
from pipelines.speculation.token_ids import TokenIds

_PROMPT_TOKENS = 64
_GREEDY = 0.0
_TEMPERATURES = (_GREEDY, 0.8)
_REFERENCE = "none"
_BLOCK = 32


def measure(
    engines: Mapping[str, Any], prompt_file: Path, num_prompts: int, num_draft_tokens: int, max_tokens: int
) -> dict[str, Any]:
    """Answer the prompts with every pair of quantizations.

    Args:
        engines: ``draft`` and ``target``: quantization -> engine directory; ``none`` is the first of both.
        prompt_file: Texts to continue.
        num_prompts: How many of them.
        num_draft_tokens: Of every round.
        max_tokens: Of every answer.

    Returns:
        ``pairs`` and ``agreement``, ready for JSON.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        EngineFailedError: The output of a target depended on the draft.
        InvalidRequestError: The prompts cannot be read.
    """
    targets = {name: Path(path) for name, path in engines["target"].items()}
    drafts = {name: Path(path) for name, path in engines["draft"].items()}
    prompts = _prompts(prompt_file, num_prompts, targets[_REFERENCE])
    length = _PROMPT_TOKENS + max_tokens
    limits = ExecutorLimits(
        max_batch_size=num_prompts,
        max_num_tokens=512,
        max_seq_len=length + num_draft_tokens,
        max_queue_size=0,
        num_kv_blocks=2 + num_prompts * (1 + -(-(length + num_draft_tokens) // _BLOCK)),
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
            prompts,
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
        {name: Engine(path, 2 + -(-length // _BLOCK)) for name, path in targets.items()},
        _REFERENCE,
        prompts,
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


def _prompts(path: Path, num_prompts: int, engine_dir: Path) -> list[TokenIds]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(engine_dir / "tokenizer.json"))
    return [
        np.array(tokenizer.encode(prompt.text).ids[:_PROMPT_TOKENS], np.int32)
        for prompt in read_prompts(path, num_prompts)
    ]


def _check_same(expected: Sequence[TokenIds], answers: Answers, target: str, draft: str) -> None:
    """A prediction from a loop that changed the output would be of another loop than the server's."""
    differing = [
        number
        for number, (mine, theirs) in enumerate(zip(answers.token_ids, expected, strict=True))
        if not np.array_equal(mine, theirs)
    ]
    if differing:
        raise EngineFailedError(
            "the output of a target depends on the draft",
            values=f"target {target}, draft {draft}, prompts {differing[:8]}",
            limit="the same tokens with every draft",
            remedy="this is a defect; keep the engines and report it",
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
    """Difference to the unquantized pair; prompts are drawn for both together, as both answered the same."""

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
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        engines = json.load(sys.stdin)
        about = {
            f"{role} {name}": Path(path)
            for role in ("target", "draft")
            for name, path in engines[role].items()
        }
        recipe = str(engines["recipe"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        parser.error(f"standard input does not say where the engines are: {error!r}")
    started_s = time.monotonic()
    given = sys.argv[1:] if arguments is None else list(arguments)
    document = {
        "recipe": recipe,
        "num_prompts": options.num_prompts,
        "prompt_tokens": _PROMPT_TOKENS,
        "max_tokens": options.max_tokens,
        "num_draft_tokens": options.num_draft_tokens,
        "conditions": conditions(
            "pipelines.calibration.quantizations", given, recipe=recipe, engines=engine_conditions(about)
        ),
    }
    try:
        figures = measure(
            engines, options.prompt_file, options.num_prompts, options.num_draft_tokens, options.max_tokens
        )
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document.update(figures, seconds=round(time.monotonic() - started_s, 1))
    print(json.dumps(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.calibration.quantizations",
        description="Predict what quantizing draft and target does to acceptance.",
    )
    parser.add_argument("--prompt-file", type=Path, default=HELD_OUT, help="texts to continue, JSON lines")
    parser.add_argument("--num-prompts", type=_positive, default=128, help="how many of them (%(default)s)")
    parser.add_argument("--num-draft-tokens", type=_positive, default=4, help="per round (%(default)s)")
    parser.add_argument("--max-tokens", type=_positive, default=64, help="per answer (%(default)s)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
