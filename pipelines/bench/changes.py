"""Compare a run with an earlier one: did speculation lose speed against the target alone?

Both runs measured their ratios in turn, so a machine that is slower today changes neither. Tokens per second
of two days are not compared; ``python -m benchmarks.versions`` measures two versions of the code in turn.

The logarithm of a ratio of ratios has the variance of both. All intervals of a comparison hold together
(Bonferroni's correction), because there are a hundred of them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from pipelines.bench.blocks import CONFIDENCE, Interval
from pipelines.bench.plan import ClosedLoop, OpenLoop
from pipelines.bench.report import FORMAT
from pipelines.bench.verdicts import NEVER_BELOW
from pipelines.errors import InvalidRequestError, VerificationError

EVERYWHERE = "all cells"
_SAME = ("recipe", "cpu", "cpu_flags", "num_cores", "temperature", "prompts")
_TAIL = (1 - CONFIDENCE) / 2


@dataclass(frozen=True)
class Change:
    """How the speed-up of one arm has changed.

    Attributes:
        cell: Prompt set and load, or ``EVERYWHERE`` for the geometric mean over all cells.
        arm: Name of the arm.
        ratio: Speed-up over the target alone, now divided by before. The intervals of a comparison contain
            all true ratios together with a probability of 95 %.
    """

    cell: str
    arm: str
    ratio: Interval

    @property
    def is_regression(self) -> bool:
        """Whether more than 3 % were lost for certain."""
        return self.ratio.high < NEVER_BELOW


def read_earlier(path: Path) -> dict[str, Any]:
    """Read the JSON of an earlier run.

    Raises:
        InvalidRequestError: The file is no result of this benchmark.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = document["format"], document["cells"], document["conditions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _cannot_read(f"{path}: {error!r}") from error
    if found[0] != FORMAT:
        raise _cannot_read(f"{path}: format {found[0]}")
    return document


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Compare the documents of two runs, arm by arm: over all cells that both have, then in each.

    Raises:
        VerificationError: The runs measured different things, so their ratios cannot be compared.
    """
    _check_alike(before, after)
    earlier = dict(_speed_ups(before))
    both = {key: (earlier[key], now) for key, now in _speed_ups(after) if key in earlier}
    if not both:
        raise VerificationError(
            "the runs have nothing in common",
            values=f"{len(before['cells'])} and {len(after['cells'])} cells",
            limit="at least one arm of one prompt set under the same load",
            remedy="repeat the run with the options of the earlier one",
        )
    arms = list(dict.fromkeys(arm for _, arm in both))
    tail = _TAIL / (len(both) + len(arms))
    degrees = min(_degrees(before), _degrees(after))
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for key, (old, new) in both.items():
        errors = _error(old, _degrees(before)), _error(new, _degrees(after))
        found[key] = math.log(new.value / old.value), math.hypot(*errors)
    pooled = []
    for arm in arms:
        of_arm = [each for (_, name), each in found.items() if name == arm]
        mean = statistics.fmean(difference for difference, _ in of_arm)
        error = math.hypot(*(error for _, error in of_arm)) / len(of_arm)
        pooled.append(Change(EVERYWHERE, arm, _interval(mean, error, tail, len(of_arm) * degrees)))
    return pooled + [Change(*key, _interval(*each, tail, degrees)) for key, each in found.items()]


def as_lines(compared: Iterable[Change]) -> list[str]:
    """Return a line for each arm over all cells, for each proven regression, and for the conclusion."""
    listed = list(compared)
    lines = ["speed-up now divided by that of the earlier run, with joint 95 % intervals:"]
    lines += [
        f"  {'REGRESSION: ' if each.is_regression else ''}{each.cell}, {each.arm}: "
        f"{each.ratio.value:.3f} ({each.ratio.low:.3f}..{each.ratio.high:.3f})"
        for each in listed
        if each.is_regression or each.cell == EVERYWHERE
    ]
    num_lost = sum(each.is_regression for each in listed)
    lines.append(f"{num_lost} of {len(listed)} ratios are proven below {NEVER_BELOW}")
    return lines


def changes_document(before: Mapping[str, Any], compared: Iterable[Change]) -> dict[str, Any]:
    """Return the comparison, ready for JSON."""
    entries = [{**asdict(each), "is_regression": each.is_regression} for each in compared]
    return {"with": before["run_id"], "limit": NEVER_BELOW, "changes": entries}


def _check_alike(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    pairs = {"max_tokens": (before["max_tokens"], after["max_tokens"])}
    pairs |= {name: (before["conditions"].get(name), after["conditions"].get(name)) for name in _SAME}
    if different := [_says(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]:
        raise VerificationError(
            "the runs measured different things",
            values="; ".join(different),
            limit=f"the same max_tokens, {', '.join(_SAME)}",
            remedy="compare with a run of the same recipe and options on the same type of processor",
        )


def _says(name: str, old: Any, new: Any) -> str:
    if isinstance(old, list):
        return f"{name} differ in {', '.join(sorted(set(old).symmetric_difference(new or ())))}"
    return f"{name}: {old}, now {new}"


def _speed_ups(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Interval]]:
    """Return the ratio to the target alone of each arm with a draft in each cell."""
    for cell in document["cells"]:
        load = cell["load"]
        is_closed = load["kind"] == "closed"
        loop = ClosedLoop(load["num_at_once"]) if is_closed else OpenLoop(load["share_of_capacity"])
        for arm in cell["arms"]:
            if arm["model"] == "generate":
                yield (f"{cell['prompt_set']}, {loop}", arm["arm"]), Interval(**arm["ratio_to_target"])


def _degrees(document: Mapping[str, Any]) -> int:
    """Return the degrees of freedom of the noise of a cell (``blocks.Blocks``)."""
    return (len(document["cells"][0]["arms"]) - 1) * int(document["repetitions"] - 1)


def _error(interval: Interval, degrees: int) -> float:
    """Return the standard error of a logarithm from its 95 % t interval."""
    return math.log(interval.high / interval.low) / 2 / float(student.ppf(1 - _TAIL, degrees))


def _interval(difference: float, error: float, tail: float, degrees: int) -> Interval:
    half = error * float(student.ppf(1 - tail, degrees))
    return Interval(math.exp(difference), math.exp(difference - half), math.exp(difference + half))


def _cannot_read(values: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the earlier run cannot be read",
        values=values,
        limit=f"the JSON of a run, of format {FORMAT}",
        remedy="name a file that an earlier 'draftproof bench' wrote, such as results/bench-*.json",
    )
