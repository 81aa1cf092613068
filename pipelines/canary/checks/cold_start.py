"""Probe a candidate's loop after it is loaded and before it gets requests of clients.

A draft that does not fit the target is obvious: hardly a token is accepted, and every round outputs one token
at the cost of two engines. The probes are the prompts of the pair's acceptance baseline if it has one, so the
same pair gives the same counts.

A baseline exists for the embedded runtime alone, which is exact: the same engines give the same counts
whatever else is served. So no difference is random, and a regression is compared with its limits directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.client.connection import Timeouts
from pipelines.client.models import Tensors, connect_to_models
from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import encode_prompts, read_tokenizer
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError, DraftproofError, EngineFailedError

Found = Literal["pass", "held", "fail"]
"""``held``: the regression neither passes nor fails and needs review. State files contain the word."""

_ROUNDING = 1e-9  # of a ratio of counts, so that a drop equal to the limit is not above it
_SEVERITY: tuple[Found, ...] = ("pass", "held", "fail")

NEAR_ONE = 1.1
"""A lower mean acceptance length fails: nine of ten rounds output no more than the target alone would."""

_NUM_PROMPTS = 8
_PROMPT_TOKENS = 64
_NUM_DRAFT_TOKENS = 4
_MAX_TOKENS = 32
_CONCURRENT_REQUESTS = 4
_TIMEOUTS = Timeouts(total_s=60)


@dataclass(frozen=True)
class Probe:
    """Total counts of a candidate's answers to all prompts.

    Attributes:
        failure: Error message of the first failure; "" if the candidate answered all prompts.
        num_prompts: Number of prompts that were answered.
        num_rounds: Number of target passes.
        total_draft_tokens: Number of draft tokens that were proposed.
        accepted_per_position: Entry i: number of rounds that accepted draft position i.
    """

    failure: str = ""
    num_prompts: int = 0
    num_rounds: int = 0
    total_draft_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 if nothing was drafted."""
        return sum(self.accepted_per_position) / max(1, self.total_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds."""
        return 1 + sum(self.accepted_per_position) / max(1, self.num_rounds)


Counts = Probe | AcceptanceBaseline
"""Total counts over all prompts, now or at the build."""


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

    @property
    def document(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {**vars(self), "drop": self.drop}


@dataclass(frozen=True)
class ColdStart:
    """Result of the probes.

    Attributes:
        probe: Counts of the answers.
        verdict: ``fail`` if the candidate must be rolled back, ``held`` if a person has to decide.
        reason: Explanation in a sentence.
        evidence: Probes and figures, ready for JSON.
    """

    probe: Probe
    verdict: Found
    reason: str
    evidence: dict[str, Any]


def cold_start(url: str, key: str, pair: PairRecord, recipe: str, limits: Limits) -> ColdStart:
    """Probe a candidate.

    Args:
        url: ``grpc://host:port`` of the server that has loaded it.
        key: Key of that server.
        pair: Candidate.
        recipe: Recipe of the candidate, whose prompts are the probes of a pair without a baseline.
        limits: Limits, of which ``manifest`` applies to the baseline.

    Raises:
        CanaryError: The candidate does not draft.
        ChatTemplateError: The recipe's prompts are conversations, for which the target has no template.
        EngineLoadError: The pair's baseline is invalid.
        InvalidRequestError: The address is invalid, or the recipe's prompts cannot be read.
        RecipeError: The recipe cannot be read.
    """
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file)) if pair.calibration_file else None
    if baseline is None:
        prompts, num_draft_tokens, max_tokens = _prompts(pair, recipe), _NUM_DRAFT_TOKENS, _MAX_TOKENS
    else:
        prompts, num_draft_tokens = baseline.prompts, baseline.num_draft_tokens
        max_tokens = baseline.max_tokens
    asked = min(num_draft_tokens, pair.max_draft_len)
    if asked < 1:
        raise CanaryError(
            "a candidate cannot be probed",
            values=f"max_draft_len={pair.max_draft_len}",
            limit="at least one draft token",
            remedy="roll out a pair whose max_draft_len is at least 1",
        )
    requests = [_inputs(prompt, asked, max_tokens) for prompt in prompts]
    probe = _probe(url, key, pair.speculative_model, requests)
    drops = limits.manifest
    comparable = baseline if asked == num_draft_tokens and drops is not None else None
    fault = _fault(probe)
    regressions = () if fault or comparable is None else baseline_regressions(probe, comparable, limits)
    verdict: Found = "fail" if fault else worst(each.verdict for each in regressions)
    return ColdStart(
        probe,
        verdict,
        fault or _reason(probe, verdict, regressions),
        {
            "num_draft_tokens": asked,
            "max_tokens": max_tokens,
            "prompts": [prompt.name for prompt in prompts],
            "baseline": None if comparable is None else _figures(comparable),
            "probe": {**asdict(probe), **_figures(probe)},
            "losses": [each.document for each in regressions],
            "limits": {
                "mean_acceptance_length": NEAR_ONE,
                "drop_holds_above": None if drops is None else drops.pass_below,
                "drop_fails_above": None if drops is None else drops.rollback_above,
            },
        },
    )


def _reason(probe: Probe, verdict: Found, regressions: Sequence[BaselineRegression]) -> str:
    if verdict == "pass":
        return f"mean acceptance length {probe.mean_acceptance_length:.2f}"
    return "; ".join(each.text for each in regressions if each.verdict == verdict)


def _fault(probe: Probe) -> str:
    """Return what is wrong with a candidate regardless of its baseline; "" if nothing is."""
    if probe.failure:
        return f"the candidate does not answer: {probe.failure}"
    if not probe.total_draft_tokens:
        return "the draft proposes no tokens"
    if probe.mean_acceptance_length < NEAR_ONE:
        return f"the mean acceptance length is {probe.mean_acceptance_length:.3f}, below {NEAR_ONE}"
    return ""


def _figures(counts: Counts) -> dict[str, float]:
    return {
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
    }


def _prompts(pair: PairRecord, recipe: str) -> tuple[BaselinePrompt, ...]:
    """Encode prompts for a pair without a baseline."""
    target = Path(pair.target_engine_dir)
    prompts = render_chats(choose_prompts(None, recipe).for_judging().draw(_NUM_PROMPTS), target)
    encoded = encode_prompts(prompts.all, read_tokenizer(target), _PROMPT_TOKENS)
    return tuple(BaselinePrompt(name, ids) for name, ids in encoded.items())


def _probe(url: str, key: str, model: str, requests: Sequence[Tensors]) -> Probe:
    try:
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            answers = list(pool.map(lambda request: _ask(url, key, model, request), requests))
    except DraftproofError as error:
        return Probe(failure=str(error))
    positions = np.sum([answer["accepted_per_position"].reshape(-1) for answer in answers], axis=0)
    return Probe(
        num_prompts=len(answers),
        num_rounds=sum(int(answer["num_rounds"].item()) for answer in answers),
        total_draft_tokens=sum(int(answer["total_draft_tokens"].item()) for answer in answers),
        accepted_per_position=tuple(positions.tolist()),
    )


def _ask(url: str, key: str, model: str, request: Tensors) -> Tensors:
    """Send a request that is not streamed and return its response."""
    with closing(connect_to_models(url, _TIMEOUTS, key)) as calls:
        responses = calls.infer(calls.describe(model), request)
    if len(responses) != 1 or not {"accepted_per_position", "num_rounds"} <= set(responses[0]):
        raise EngineFailedError(
            "the candidate's answer has no counts",
            values=f"{model}: {len(responses)} responses",
            limit="one response with the outputs of model 'speculative'",
            remedy="read the server's log",
        )
    return responses[0]


def _inputs(prompt: BaselinePrompt, num_draft_tokens: int, max_tokens: int) -> Tensors:
    ids = np.array([prompt.input_ids], np.int32)
    scalars = {
        "input_lengths": ids.size,
        "request_output_len": max_tokens,
        "num_draft_tokens": num_draft_tokens,
    }
    return {"input_ids": ids, **{name: np.array([[value]], np.int32) for name, value in scalars.items()}}


def baseline_regressions(now: Counts, at_build: Counts, limits: Limits) -> tuple[BaselineRegression, ...]:
    """Compare rate, length, and survival of the first positions; skips positions never reached at the build.

    Args:
        now: Counts of the loaded pair.
        at_build: Counts of its baseline.
        limits: Limits, of which ``manifest`` and ``survival_positions`` are used.
    """
    limit = limits.manifest
    if limit is None:
        return ()
    return tuple(
        BaselineRegression(name, before, after, _judged(1 - after / before, limit))
        for name, after, before in _compared(now, at_build, limits.survival_positions)
        if before
    )


def worst(found: Iterable[Found]) -> Found:
    """Return the worst of several verdicts; ``pass`` if there are none."""
    return max(found, key=_SEVERITY.index, default="pass")


def _compared(now: Counts, at_build: Counts, num_positions: int) -> Iterator[tuple[str, float, float]]:
    yield "acceptance_rate", now.acceptance_rate, at_build.acceptance_rate
    yield "acceptance_length", now.mean_acceptance_length, at_build.mean_acceptance_length
    survivals = zip(
        _survival(now), _survival(at_build), strict=False
    )  # lengths differ if one was never drafted
    for position, (after, before) in enumerate(survivals, 1):
        if position <= num_positions:
            yield f"survival/{position}", after, before


def _survival(counts: Counts) -> Iterator[float]:
    return (accepted / max(1, counts.num_rounds) for accepted in counts.accepted_per_position)


def _judged(drop: float, limit: Limit[float]) -> Found:
    if drop > limit.rollback_above + _ROUNDING:
        return "fail"
    return "held" if drop > limit.pass_below + _ROUNDING else "pass"
