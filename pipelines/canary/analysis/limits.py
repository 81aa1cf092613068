"""What a candidate may lose, read from YAML; unknown keys are refused.

Every loss has two limits. The candidate passes once its loss is shown to be below ``pass_below``, and fails
once it is shown to be above ``rollback_above``. Shown to be above ``pass_below`` alone, it is held: more
requests will not let it pass. Either limit may be the lower one: what it takes to show that nothing is lost
need not be what it takes to show that something is.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.errors import CanaryError

DEFAULT = Path(__file__).with_name("limits.yaml")

RUNTIMES = ("exact", "batch_dependent")

# What a loss can be at all lies strictly between these, as the measures have it (``Measure.losses``): a limit
# on the edge or beyond it would be reached never or always, and bets on it have no stake.
_RISE, _DROP, _DIFFERENCE, _SHARE = (-1, 9), (-9, 1), (-1, 1), (0, 1)

_RANGES: dict[str, tuple[float, float]] = {
    "alpha": (0, 0.5),
    "confidence": (0.5, 1),
    "quantile": (0, 1),
    "least_share": (0, 1 / 3),  # of three bands one has as much, so one is always judged
    "tokens": _SHARE,
    "errors": _DIFFERENCE,
    "timeouts": _DIFFERENCE,
    "goodput": _DIFFERENCE,
    "acceptance_rate": _DROP,
    "acceptance_length": _DROP,
    "survival": _DROP,
    "manifest": _DROP,
    "ttft": _RISE,
    "itl": _RISE,
    "e2e_tail": _RISE,
    "speed_up": _RISE,
}


@dataclass(frozen=True)
class Limit:
    """Of one loss: a share of 1, or a difference of shares."""

    pass_below: float
    rollback_above: float


@dataclass(frozen=True)
class Limits:
    """All of them.

    Attributes:
        alpha: A candidate that exceeds no ``rollback_above`` fails with this probability at most, over all
            losses and however often one looks.
        confidence: A candidate that has reached a ``pass_below`` passes with one less this at most.
        min_requests: Pairs below which no loss is judged.
        runtime: "exact", where every token must be the target's own, or "batch_dependent", where ties are
            excused.
        quantile: Of the end-to-end latency, for ``e2e_tail``.
        survival_positions: Draft positions, from the first, whose survival is judged; those that are drafted
            seldom are not.
        tokens: Share of prompts whose answer diverges; with "exact" a single one fails.
        errors: Rise of the share of requests that fail.
        timeouts: Rise of the share that time out.
        goodput: Fall of the share of requests that keep the SLO.
        acceptance_rate: Relative drop, as of those that follow; all three where a replay and the answer that
            it repeats drafted the same (``matched_rounds``).
        acceptance_length: Of tokens per round.
        survival: Of the rounds that drafted a position, those that accepted it.
        manifest: Relative drop of acceptance rate, length and survival at the cold start, from what was
            measured at the build; not a matter of chance, so above ``pass_below`` it is held at once.
        ttft: Relative rise, as of those that follow.
        itl: Time per output token.
        e2e_tail: A high quantile of end-to-end latency.
        speed_up: Load band -> rise of the mean time over that of the target alone, answers of a length
            compared with such. The speed-up is one over 1 + this, so ``pass_below: 0`` asks for one above 1.
            A band in which few requests arrive is not judged.
        least_share: Share of the candidate's requests below which those of a load band are few, and of its
            replays below which those that draft a position are: what is met once in a hundred requests would
            withhold the verdict for a hundred times as many.
    """

    alpha: float
    confidence: float
    min_requests: int
    runtime: str
    quantile: float
    survival_positions: int
    tokens: Limit
    errors: Limit
    timeouts: Limit
    goodput: Limit
    acceptance_rate: Limit
    acceptance_length: Limit
    survival: Limit
    manifest: Limit
    ttft: Limit
    itl: Limit
    e2e_tail: Limit
    speed_up: dict[str, Limit]
    least_share: float


def read_limits(path: Path = DEFAULT) -> Limits:
    """Read a file.

    Raises:
        CanaryError: It cannot be read, or a key is unknown, missing or of a wrong type or range.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _refuse(path, "cannot be read", " ".join(str(error).split()), "a YAML file") from None
    return limits_from(raw, path)


def limits_from(raw: Any, path: Path) -> Limits:
    """Limits from what a file holds.

    Args:
        raw: Keys and values.
        path: Named in errors.

    Raises:
        CanaryError: As ``read_limits``.
    """
    return _section(path, Limits, raw, "")


_Section = typing.TypeVar("_Section")


def _section(path: Path, cls: type[_Section], raw: Any, prefix: str) -> _Section:
    where = prefix.rstrip(".") or "the file"
    if not isinstance(raw, dict):
        raise _refuse(path, "a section is not a mapping", f"{where}: {raw!r}", "keys and values")
    kinds = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else "remove it"
            raise _refuse(path, "unknown key", f"{prefix}{key}", f"known here: {', '.join(known)}", hint)
    if missing := [key for key in known if key not in raw]:
        raise _refuse(path, "a key is missing", f"{prefix}{missing[0]}", f"required: {', '.join(known)}")
    return cls(**{key: _value(path, f"{prefix}{key}", kinds[key], raw[key]) for key in known})


def _value(path: Path, name: str, kind: Any, value: Any) -> Any:
    if kind is Limit:
        return _section(path, Limit, value, f"{name}.")
    if kind is str:
        if value not in RUNTIMES:
            raise _refuse(path, "a value is not one of the choices", f"{name}={value!r}", ", ".join(RUNTIMES))
        return value
    if kind is int:
        if type(value) is not int or value < 1:
            raise _refuse(path, "a value is out of range", f"{name}={value!r}", "a whole number, 1 at least")
        return value
    if kind is float:
        least, most = _RANGES[name.partition(".")[0]]
        if type(value) not in (int, float) or not least < value < most:
            limit = f"a number between {least:g} and {most:g}, neither of them"
            raise _refuse(path, "a value is out of range", f"{name}={value!r:.200}", limit)
        return float(value)
    if not isinstance(value, dict) or not value or any(not isinstance(band, str) for band in value):
        raise _refuse(path, "a section is not a mapping", f"{name}={value!r}", "load bands and their limits")
    return {band: _section(path, Limit, limit, f"{name}.{band}.") for band, limit in value.items()}


def _refuse(path: Path, what: str, values: str, limit: str, remedy: str = "correct the file") -> CanaryError:
    return CanaryError(f"{path}: {what}", values=values, limit=limit, remedy=remedy)
