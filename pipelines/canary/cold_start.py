"""Probes a candidate's loop right after it is loaded, before any client's request reaches it.

A draft that is not the target's shows at once: hardly a token is accepted, and every round gives one token
for the price of two engines. The probes are the prompts of the pair's acceptance baseline where it has one,
so that the same pair gives the same counts (``baseline_losses``). A rollout is that of one server, in which
one process holds the candidate: where there are several servers, each has a rollout of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary.analysis.limits import Limits
from pipelines.canary.baseline_losses import BaselineLoss, Found, baseline_losses, worst
from pipelines.canary.candidate import Pair
from pipelines.client.any_model import Tensors, connect_to_models
from pipelines.client.timeouts import Timeouts
from pipelines.errors import CanaryError, DraftproofError, EngineFailedError
from pipelines.prompts import HELD_OUT, read_prompts

NEAR_ONE = 1.1
"""A mean acceptance length below it fails: of ten rounds, nine gave what the target alone gives."""

_NUM_PROMPTS = 8
_PROMPT_TOKENS = 64
_NUM_DRAFT_TOKENS = 4
_MAX_TOKENS = 32
_AT_ONCE = 4
_TIMEOUTS = Timeouts(total_s=60)


@dataclass(frozen=True)
class Probe:
    """What a candidate made of all prompts.

    Attributes:
        failure: "" if it answered them all.
        num_prompts: Answered.
        num_rounds: Target passes.
        total_draft_tokens: Draft tokens proposed.
        accepted_per_position: Entry i: rounds in which draft position i was accepted.
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


@dataclass(frozen=True)
class ColdStart:
    """What was found.

    Attributes:
        probe: The answers.
        verdict: ``fail`` if the candidate has to leave, ``held`` if a person is to decide.
        reason: In a sentence.
        evidence: What was asked and found, ready for JSON.
    """

    probe: Probe
    verdict: Found
    reason: str
    evidence: dict[str, Any]


def cold_start(url: str, pair: Pair, limits: Limits) -> ColdStart:
    """Probe a candidate.

    Args:
        url: ``grpc://host:port`` or ``http://host:port`` of the server that has loaded it.
        pair: The candidate.
        limits: ``manifest`` is what it may have lost of its baseline.

    Raises:
        CanaryError: It does not draft.
        EngineLoadError: The pair's baseline makes no sense.
        InvalidRequestError: An address has no meaning.
    """
    baseline = AcceptanceBaseline.read(Path(pair.calibration_file)) if pair.calibration_file else None
    if baseline is None:
        prompts, num_draft_tokens, max_tokens = _prompts(pair), _NUM_DRAFT_TOKENS, _MAX_TOKENS
    else:
        prompts, num_draft_tokens = baseline.prompts, baseline.num_draft_tokens
        max_tokens = baseline.max_tokens
    asked = min(num_draft_tokens, pair.max_draft_len)
    if asked < 1:
        raise CanaryError(
            "a candidate cannot be probed",
            values=f"max_draft_len={pair.max_draft_len}",
            limit="at least one draft token",
            remedy="roll out a pair that drafts",
        )
    requests = [_inputs(prompt, asked, max_tokens) for prompt in prompts]
    probe = _probe(url, pair.speculative_model, requests)
    comparable = baseline if asked == num_draft_tokens else None
    fault = _fault(probe)
    losses = () if fault or comparable is None else baseline_losses(probe, comparable, limits)
    verdict: Found = "fail" if fault else worst(loss.verdict for loss in losses)
    return ColdStart(
        probe,
        verdict,
        fault or _said(probe, verdict, losses),
        {
            "num_draft_tokens": asked,
            "max_tokens": max_tokens,
            "prompts": [prompt.name for prompt in prompts],
            "baseline": None if comparable is None else _figures(comparable),
            "probe": {**asdict(probe), **_figures(probe)},
            "losses": [loss.document for loss in losses],
            "limits": {
                "mean_acceptance_length": NEAR_ONE,
                "drop_holds_above": limits.manifest.pass_below,
                "drop_fails_above": limits.manifest.rollback_above,
            },
        },
    )


def _said(probe: Probe, verdict: Found, losses: Sequence[BaselineLoss]) -> str:
    if verdict == "pass":
        return f"mean acceptance length {probe.mean_acceptance_length:.2f}"
    return "; ".join(loss.text for loss in losses if loss.verdict == verdict)


def _fault(probe: Probe) -> str:
    """What is wrong with a candidate whatever its baseline says; "" for nothing."""
    if probe.failure:
        return f"it does not answer: {probe.failure}"
    if not probe.total_draft_tokens:
        return "its draft proposes nothing"
    if probe.mean_acceptance_length < NEAR_ONE:
        return f"its mean acceptance length is {probe.mean_acceptance_length:.3f}, near 1"
    return ""


def _figures(counts: Probe | AcceptanceBaseline) -> dict[str, float]:
    return {
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
    }


def _prompts(pair: Pair) -> tuple[BaselinePrompt, ...]:
    """For a pair without a baseline: text as the pair's own tokenizer spells it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(pair.target_engine_dir) / "tokenizer.json"))
    return tuple(
        BaselinePrompt(prompt.prompt_id, tuple(tokenizer.encode(prompt.text).ids[:_PROMPT_TOKENS]))
        for prompt in read_prompts(HELD_OUT, _NUM_PROMPTS)
    )


def _probe(url: str, model: str, requests: Sequence[Tensors]) -> Probe:
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(lambda request: _ask(url, model, request), requests))
    except DraftproofError as error:
        return Probe(failure=str(error))
    positions = np.sum([answer["accepted_per_position"].reshape(-1) for answer in answers], axis=0)
    return Probe(
        num_prompts=len(answers),
        num_rounds=sum(int(answer["num_rounds"].item()) for answer in answers),
        total_draft_tokens=sum(int(answer["total_draft_tokens"].item()) for answer in answers),
        accepted_per_position=tuple(positions.tolist()),
    )


def _ask(url: str, model: str, request: Tensors) -> Tensors:
    """The one response of a request that is not streamed."""
    with closing(connect_to_models(url, _TIMEOUTS)) as calls:
        responses = calls.infer(calls.describe(model), request)
    if len(responses) != 1 or not {"accepted_per_position", "num_rounds"} <= set(responses[0]):
        raise EngineFailedError(
            "the candidate gives no answer with counts",
            values=f"{model}: {len(responses)} responses",
            limit="one response, as model 'speculative' gives it",
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
