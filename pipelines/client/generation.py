"""Answers of a server: chunks as they arrive, and the whole answer with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.errors import InternalError
from pipelines.wire.chunk import Chunk, SpeculationCounts, TopLogProbs


@dataclass(frozen=True)
class Generation:
    """A complete answer. Times are in seconds.

    Attributes:
        text: Whole text.
        output_ids: All output tokens, without ``end_id``.
        accepted_mask: For each of ``output_ids``, whether it was an accepted draft token; empty from
            ``generate_target``, which has no draft.
        finish_reason: "stop" after ``end_id`` or a stop word, "length" at ``max_tokens``.
        num_rounds: Number of target passes; 0 from ``generate_target``, which does not count them.
        total_draft_tokens: Number of proposed draft tokens.
        total_accepted_draft_tokens: Number of accepted draft tokens.
        accepted_per_position: As in ``SpeculationCounts``.
        ttft_s: Time from sending the request to the first output token; None if the answer was not streamed
            or is empty.
        e2e_latency_s: Time from sending the request to the last output token.
        seed: As in ``Chunk``.
        draft_length: As in ``Chunk``.
        log_probs: As in ``Chunk``, for all ``output_ids``.
        top_log_probs: As in ``Chunk``, for all ``output_ids``.
        prompt_log_probs: As in the first ``Chunk``.
        prompt_top_log_probs: As in the first ``Chunk``.
        drafted_per_round: Draft tokens that each target pass verified, in order; empty from
            ``generate_target``.
        arm: As in ``Chunk``.
        fallback_from: As in ``Chunk``.
    """

    text: str
    output_ids: tuple[int, ...]
    accepted_mask: tuple[bool, ...]
    finish_reason: str
    num_rounds: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int
    accepted_per_position: tuple[int, ...]
    ttft_s: float | None
    e2e_latency_s: float
    seed: int | None = None
    draft_length: str = ""
    log_probs: tuple[float, ...] = ()
    top_log_probs: TopLogProbs = ()
    prompt_log_probs: tuple[float, ...] = ()
    prompt_top_log_probs: TopLogProbs = ()
    drafted_per_round: tuple[int, ...] = ()
    arm: str = ""
    fallback_from: tuple[str, ...] = ()

    @property
    def num_output_tokens(self) -> int:
        """Length of ``output_ids``."""
        return len(self.output_ids)

    @property
    def itl_s(self) -> float | None:
        """Time per output token after the first: (e2e - ttft) / (tokens - 1).

        None with fewer than two tokens or without streaming. A round returns several tokens in one chunk, so
        this is not the time between chunks.
        """
        if self.ttft_s is None or len(self.output_ids) < 2:
            return None
        return (self.e2e_latency_s - self.ttft_s) / (len(self.output_ids) - 1)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, 0 to 1; None if nothing was drafted."""
        if self.total_draft_tokens == 0:
            return None
        return self.total_accepted_draft_tokens / self.total_draft_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds: tokens per target pass; None if no round was counted."""
        if self.num_rounds == 0:
            return None
        return 1 + self.total_accepted_draft_tokens / self.num_rounds


def join_chunks(chunks: Sequence[Chunk], sent_at_s: float, *, streamed: bool) -> Generation:
    """Join the chunks of an answer.

    Args:
        chunks: All chunks of one answer in the order of arrival.
        sent_at_s: Time at which the request was sent, on the clock of ``Chunk.received_at_s``.
        streamed: Whether the arrival of the first chunk is that of the first token.

    Raises:
        InternalError: A chunk is missing.
    """
    output_ids = tuple(token_id for chunk in chunks for token_id in chunk.output_ids)
    if not chunks or not chunks[-1].finish_reason:
        raise inconsistent(f"no finish_reason after {len(output_ids)} tokens")
    last = chunks[-1]
    if last.sequence_length != len(output_ids):
        raise inconsistent(f"sequence_length={last.sequence_length}, {len(output_ids)} tokens received")
    first = next((chunk for chunk in chunks if chunk.output_ids), None)
    counts = last.counts or SpeculationCounts(0, 0, 0, ())
    joined = {
        name: tuple(value for chunk in chunks for value in getattr(chunk, name))
        for name in ("log_probs", "top_log_probs", "prompt_log_probs", "prompt_top_log_probs")
    }
    return Generation(
        text="".join(chunk.text for chunk in chunks),
        output_ids=output_ids,
        accepted_mask=tuple(mark for chunk in chunks for mark in chunk.accepted_mask if last.counts),
        finish_reason=last.finish_reason,
        num_rounds=counts.num_rounds,
        total_draft_tokens=counts.total_draft_tokens,
        total_accepted_draft_tokens=counts.total_accepted_draft_tokens,
        accepted_per_position=counts.accepted_per_position,
        ttft_s=first.received_at_s - sent_at_s if first and streamed else None,
        e2e_latency_s=last.received_at_s - sent_at_s,
        seed=last.seed,
        draft_length=last.draft_length,
        drafted_per_round=last.drafted_per_round,
        arm=last.arm,
        fallback_from=last.fallback_from,
        **joined,
    )


def inconsistent(values: str) -> InternalError:
    """Return the error for an answer that contradicts itself."""
    return InternalError(
        f"the server's answer is inconsistent: {values}",
        "check that client and server have the same release, and read the server's log",
    )
