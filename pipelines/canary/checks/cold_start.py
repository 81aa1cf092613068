"""Probe a candidate's loop after it is loaded and before it gets requests of clients.

A draft that does not fit the target is obvious: hardly a token is accepted, and every round outputs one token
at the cost of two engines. The probes are the prompts of the pair's acceptance baseline.

The embedded runtime is exact: the same engines give the same counts whatever else is served. So no difference
is random, and a regression is compared with its limits directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary.controller.repository_api import RepositoryApi
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import DraftproofError

Found = Literal["pass", "held", "fail"]
"""``held``: the regression neither passes nor fails and needs review. State files contain the word."""

_ROUNDING = 1e-9  # of a ratio of counts, so that a drop equal to the limit is not above it
_SEVERITY: tuple[Found, ...] = ("pass", "held", "fail")

NEAR_ONE = 1.1
"""A lower mean acceptance length fails: nine of ten rounds output no more than the target alone would."""

_CONCURRENT_REQUESTS = 4
_ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True)
class BaselineRegression:
    """One figure of acceptance at the build and now.

    Attributes:
        name: Name as in ``Limits``, with the position after a slash.
        at_build: Figure at the build, above 0.
        now: Figure now.
        verdict: Verdict by ``Limits.manifest``.
    """

    name: str
    at_build: float
    now: float
    verdict: Found

    @property
    def drop(self) -> float:
        """Relative drop since the build; negative for a rise."""
        return 1 - self.now / self.at_build

    @property
    def text(self) -> str:
        """Description for people."""
        return f"{self.name} {self.now:.3f}, {self.at_build:.3f} at the build ({self.drop:.1%} less)"


@dataclass(frozen=True)
class ColdStart:
    """Result of the probes.

    Attributes:
        probe: AcceptanceBaseline of the answers; None if a prompt was not answered.
        verdict: ``fail`` if the candidate must be rolled back, ``held`` if a person has to decide.
        reason: Explanation in a sentence.
        evidence: Probes and figures, ready for JSON.
    """

    probe: AcceptanceBaseline | None
    verdict: Found
    reason: str
    evidence: dict[str, Any]


def cold_start(api: RepositoryApi, pair: PairRecord, limits: Limits) -> ColdStart:
    """Probe a candidate.

    Args:
        api: The server that has loaded it.
        pair: Candidate.
        limits: Limits, of which ``manifest`` applies to the baseline.

    Raises:
        EngineLoadError: The pair's baseline is missing or invalid.
    """
    at_build = AcceptanceBaseline.read(Path(pair.calibration_file))
    asked = replace(at_build, num_draft_tokens=min(at_build.num_draft_tokens, pair.max_draft_len))
    drops = limits.manifest
    is_comparable = drops is not None and asked.num_draft_tokens == at_build.num_draft_tokens
    baseline = at_build if is_comparable else None
    probe, regressions = None, []
    try:
        probe = _probe(api, pair.speculative_model, asked)
        fault = _fault(probe)
        if baseline and drops and not fault:
            regressions = _regressions(probe, baseline, drops, limits.survival_positions)
    except DraftproofError as error:
        fault = f"the candidate does not answer: {error}"
    verdict: Found = "fail" if fault else _worst(regressions)
    passes = "" if probe is None else f"mean acceptance length {probe.mean_acceptance_length:.2f}"
    differs = "; ".join(each.text for each in regressions if each.verdict == verdict)
    return ColdStart(
        probe,
        verdict,
        fault or (passes if verdict == "pass" else differs),
        {
            "num_draft_tokens": asked.num_draft_tokens,
            "max_tokens": asked.max_tokens,
            "prompts": [prompt.name for prompt in asked.prompts],
            "baseline": _figures(baseline),
            "probe": _figures(probe),
            "losses": [{**vars(each), "drop": each.drop} for each in regressions],
            "limits": {
                "mean_acceptance_length": NEAR_ONE,
                "drop_holds_above": drops and drops.pass_below,
                "drop_fails_above": drops and drops.rollback_above,
            },
        },
    )


def _fault(probe: AcceptanceBaseline) -> str:
    """Return what is wrong with a candidate regardless of its baseline; "" if nothing is."""
    if not probe.total_draft_tokens:
        return "the draft proposes no tokens"
    if probe.mean_acceptance_length < NEAR_ONE:
        return f"the mean acceptance length is {probe.mean_acceptance_length:.3f}, below {NEAR_ONE}"
    return ""


def _figures(counts: AcceptanceBaseline | None) -> dict[str, float] | None:
    if counts is None:
        return None
    return {
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
    }


def _probe(api: RepositoryApi, model: str, asked: AcceptanceBaseline) -> AcceptanceBaseline:
    """Send all prompts, and return what was asked with the counts of its answers."""

    def ask(prompt: BaselinePrompt) -> dict[str, Any]:
        inputs = {
            "input_ids": prompt.input_ids,
            "input_lengths": len(prompt.input_ids),
            "request_output_len": asked.max_tokens,
            "num_draft_tokens": asked.num_draft_tokens,
        }
        return api.generate(model, inputs, _ANSWERS_WITHIN_S)

    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
        answers = list(pool.map(ask, asked.prompts))
    positions = np.sum([np.reshape(answer["accepted_per_position"], -1) for answer in answers], axis=0)
    return replace(
        asked,
        num_rounds=sum(answer["num_rounds"] for answer in answers),
        total_draft_tokens=sum(answer["total_draft_tokens"] for answer in answers),
        accepted_per_position=tuple(positions.tolist()),
    )


def _regressions(
    now: AcceptanceBaseline, at_build: AcceptanceBaseline, limit: Limit[float], num_positions: int
) -> list[BaselineRegression]:
    """Compare rate, length, and survival of the first positions, except those never reached at the build."""
    return [
        BaselineRegression(name, before, after, _judged(1 - after / before, limit))
        for name, after, before in _compared(now, at_build, num_positions)
        if before
    ]


def _worst(regressions: Sequence[BaselineRegression]) -> Found:
    return max((each.verdict for each in regressions), key=_SEVERITY.index, default="pass")


def _compared(
    now: AcceptanceBaseline, at_build: AcceptanceBaseline, num_positions: int
) -> Iterator[tuple[str, float, float]]:
    yield "acceptance_rate", now.acceptance_rate, at_build.acceptance_rate
    yield "acceptance_length", now.mean_acceptance_length, at_build.mean_acceptance_length
    survivals = zip(
        _survival(now), _survival(at_build), strict=False
    )  # lengths differ if one was never drafted
    for position, (after, before) in enumerate(survivals, 1):
        if position <= num_positions:
            yield f"survival/{position}", after, before


def _survival(counts: AcceptanceBaseline) -> Iterator[float]:
    return (accepted / max(1, counts.num_rounds) for accepted in counts.accepted_per_position)


def _judged(drop: float, limit: Limit[float]) -> Found:
    if drop > limit.rollback_above + _ROUNDING:
        return "fail"
    return "held" if drop > limit.pass_below + _ROUNDING else "pass"
