"""From what the router noted to what a candidate is judged by."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.canary.analysis.observed import ObservedRequest, Tokens
from pipelines.routing.observation import Observation


def observed(observation: Observation, runtime: str) -> Iterator[ObservedRequest]:
    """The requests that one line of the router stands for.

    An arm that failed and whose request another one answered counts as failed. That other answer counts for
    nobody: not chance chose who gave it. Neither does an answer of an arm that the client named.

    Args:
        observation: Of this rollout.
        runtime: As in the limits. Where answers depend on the batch, one that differs may be a tie.
    """
    if observation.overridden:
        return
    for arm, reason in zip(observation.fallback_from, observation.fallback_reasons, strict=True):
        yield ObservedRequest(
            observation.request_id,
            arm,
            observation.arrived_at_s,
            observation.band,
            "timeout" if reason == "timeout" else "error",
            prompt_id=observation.prompt_id,
            session_id=observation.session_id,
            is_replay=observation.is_replay,
        )
    if observation.fallback_from:
        return
    tokens: Tokens = observation.tokens
    if tokens == "diverged" and runtime == "batch_dependent":
        tokens = "unknown"
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
        tokens,
        observation.prompt_id,
        observation.session_id,
        observation.is_replay,
        observation.num_common_tokens,
    )
