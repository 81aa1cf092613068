"""Answers of a server: chunks as they arrive, and the whole answer with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InternalError
from pipelines.wire.chunk import Chunk, SpeculationCounts, TopLogProbs

TOKEN_SOURCES = ("target", "draft_model", "lookup", "grammar")
"""Sources of output tokens, by their numbers in ``Chunk.token_sources``."""


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


def chunk_from_outputs(outputs: Mapping[str, Sequence[Any]], received_at_s: float) -> Chunk:
    """Convert the outputs of one response to a chunk.

    Args:
        outputs: Tensor name -> values, flattened; text as ``str`` or UTF-8 ``bytes``.
        received_at_s: Time of arrival on ``time.monotonic``'s clock.

    Raises:
        InternalError: An output is missing, or the response is inconsistent.
    """
    try:
        counts = None
        if "num_rounds" in outputs:
            counts = SpeculationCounts(
                num_rounds=int(outputs["num_rounds"][0]),
                total_draft_tokens=int(outputs["total_draft_tokens"][0]),
                total_accepted_draft_tokens=int(outputs["total_accepted_draft_tokens"][0]),
                accepted_per_position=tuple(int(count) for count in outputs["accepted_per_position"]),
                accepted_prediction_tokens=int(outputs.get("accepted_prediction_tokens", (0,))[0]),
                rejected_prediction_tokens=int(outputs.get("rejected_prediction_tokens", (0,))[0]),
            )
        output_ids = tuple(int(token_id) for token_id in outputs["output_ids"])
        of_prompt = outputs.get("prompt_log_probs", ())
        chunk = Chunk(
            text=_text(outputs["text_output"]),
            output_ids=output_ids,
            accepted_mask=tuple(bool(accepted) for accepted in outputs.get("accepted_mask", ()))
            or (False,) * len(output_ids),
            finish_reason=_text(outputs["finish_reason"]),
            received_at_s=received_at_s,
            sequence_length=int(outputs["sequence_length"][0]),
            counts=counts,
            drafted_per_round=tuple(int(num) for num in outputs.get("drafted_per_round", ())),
            seed=int(outputs["output_seed"][0]) if "output_seed" in outputs else None,
            num_cached=int(outputs.get("cached_prompt_tokens", (0,))[0]),
            draft_length=_text(outputs["draft_length"]) if "draft_length" in outputs else "",
            log_probs=tuple(float(value) for value in outputs.get("output_log_probs", ())),
            top_log_probs=_top_log_probs(outputs, len(output_ids)),
            prompt_log_probs=tuple(map(float, of_prompt)),
            prompt_top_log_probs=_top_log_probs(outputs, len(of_prompt), "prompt_"),
            arm=_text(outputs.get("arm", ("",))),
            fallback_from=tuple(filter(None, _text(outputs.get("fallback_from", ("",))).split(","))),
            token_sources=tuple(int(source) for source in outputs.get("token_sources", ()))
            or (0,) * len(output_ids),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _inconsistent(f"{error!r} in a response with outputs {sorted(outputs)}") from error
    if len(chunk.accepted_mask) != len(chunk.output_ids):
        raise _inconsistent(f"{len(chunk.accepted_mask)} marks for {len(chunk.output_ids)} tokens")
    if len(chunk.token_sources) != len(chunk.output_ids):
        raise _inconsistent(f"{len(chunk.token_sources)} sources of {len(chunk.output_ids)} tokens")
    if chunk.log_probs and len(chunk.log_probs) != len(chunk.output_ids):
        raise _inconsistent(f"{len(chunk.log_probs)} log probs for {len(chunk.output_ids)} tokens")
    return chunk


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
        raise _inconsistent(f"no finish_reason after {len(output_ids)} tokens")
    if chunks[-1].sequence_length != len(output_ids):
        told = chunks[-1].sequence_length
        raise _inconsistent(f"sequence_length={told}, {len(output_ids)} tokens received")
    first = next((chunk for chunk in chunks if chunk.output_ids), None)
    counts = chunks[-1].counts or SpeculationCounts(0, 0, 0, ())
    return Generation(
        text="".join(chunk.text for chunk in chunks),
        output_ids=output_ids,
        accepted_mask=tuple(mark for chunk in chunks for mark in chunk.accepted_mask if chunks[-1].counts),
        finish_reason=chunks[-1].finish_reason,
        num_rounds=counts.num_rounds,
        total_draft_tokens=counts.total_draft_tokens,
        total_accepted_draft_tokens=counts.total_accepted_draft_tokens,
        accepted_per_position=counts.accepted_per_position,
        ttft_s=first.received_at_s - sent_at_s if first and streamed else None,
        e2e_latency_s=chunks[-1].received_at_s - sent_at_s,
        seed=chunks[-1].seed,
        draft_length=chunks[-1].draft_length,
        log_probs=tuple(log_prob for chunk in chunks for log_prob in chunk.log_probs),
        top_log_probs=tuple(alternatives for chunk in chunks for alternatives in chunk.top_log_probs),
        prompt_log_probs=tuple(each for chunk in chunks for each in chunk.prompt_log_probs),
        prompt_top_log_probs=tuple(each for chunk in chunks for each in chunk.prompt_top_log_probs),
        drafted_per_round=chunks[-1].drafted_per_round,
        arm=chunks[-1].arm,
        fallback_from=chunks[-1].fallback_from,
    )


def _top_log_probs(outputs: Mapping[str, Sequence[Any]], num_tokens: int, of: str = "") -> TopLogProbs:
    """Split the row of alternatives into equally many for each token."""
    ids = [int(token_id) for token_id in outputs.get(f"{of}top_log_prob_ids", ())]
    values = [float(value) for value in outputs.get(f"{of}top_log_probs", ())]
    if not ids and not values:
        return ()
    if not num_tokens or len(ids) % num_tokens or len(ids) != len(values):
        raise ValueError(f"{len(ids)} ids and {len(values)} log probs of alternatives, {num_tokens} tokens")
    pairs = tuple(zip(ids, values, strict=True))
    step = len(pairs) // num_tokens
    return tuple(pairs[start : start + step] for start in range(0, len(pairs), step))


def _text(values: Sequence[Any]) -> str:
    value = values[0]
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _inconsistent(values: str) -> InternalError:
    return InternalError(
        f"the server's answer is inconsistent: {values}",
        "check that client and server have the same release, and read the server's log",
    )
