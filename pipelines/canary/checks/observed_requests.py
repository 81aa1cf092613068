"""Convert the router's observations to the requests that a candidate is judged by."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipelines.canary.judge.observed import Compared, ObservedRequest
from pipelines.router.observation import Difference, Observation

_BATCH_DEPENDENT: dict[Difference, Compared] = {"tokens": "unknown", "log_probs": "equal"}


def observed_requests(observation: Observation, runtime: str) -> Iterator[ObservedRequest]:
    """Convert one observation.

    If an arm failed and another one answered, the arm that failed counts as failed. The other arm's answer
    does not count, because chance did not choose that arm. An answer of an arm that the client named does not
    count either.

    Args:
        observation: Observation of this rollout.
        runtime: Runtime as in the limits. If answers depend on the batch, different tokens may come from a
            tie, and log probabilities differ in their last bits.

    Yields:
        Each request that counts: one for every arm that failed, or one for the arm that answered.
    """
    if observation.overridden:
        return
    faults = itertools.chain(observation.fallback_faults, itertools.repeat(""))
    for arm, reason, fault in zip(
        observation.fallback_from, observation.fallback_reasons, faults, strict=False
    ):
        if reason == "busy":  # clients can fill a queue, so it is no failure of the arm (``router.breaker``)
            continue
        yield ObservedRequest(
            observation.request_id,
            arm,
            observation.arrived_at_s,
            observation.band,
            "timeout" if reason == "timeout" else "error",
            prompt_id=observation.prompt_id,
            session_id=observation.session_id,
            is_replay=observation.is_replay,
            fault=fault,
        )
    if observation.fallback_from:
        return
    answer: Compared = observation.answer
    if runtime == "batch_dependent":
        answer = _BATCH_DEPENDENT.get(observation.differs_in, answer)
    yield ObservedRequest(
        observation.request_id,
        observation.arm,
        observation.arrived_at_s,
        observation.band,
        observation.failure,
        observation.ttft_s,
        observation.e2e_latency_s,
        observation.num_output_tokens,
        observation.drafted_per_round,
        observation.accepted_per_round,
        answer,
        observation.prompt_id,
        observation.session_id,
        observation.is_replay,
        observation.num_common_tokens,
        observation.differs_in,
        observation.longest_pause_s,
        observation.fault,
    )
