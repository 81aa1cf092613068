"""What a server answers: chunks as they arrive, and the whole answer with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InternalError

TopLogProbs = tuple[tuple[tuple[int, float], ...], ...]
"""For each token the ids and log probabilities of alternatives."""


@dataclass(frozen=True)
class SpeculationCounts:
    """What the loop counted, from the beginning of the answer to this chunk.

    Attributes:
        num_rounds: Target passes.
        total_draft_tokens: Draft tokens proposed.
        total_accepted_draft_tokens: Those that the target accepted.
        accepted_per_position: Entry i: rounds in which draft position i was accepted.
    """

    num_rounds: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int
    accepted_per_position: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """One response of a stream.

    Attributes:
        text: New text.
        output_ids: New tokens; never the prompt.
        accepted_mask: For each of ``output_ids`` whether it was an accepted draft token.
        finish_reason: "" until the last chunk, then "stop" or "length".
        received_at_s: When the response reached this process, on ``time.monotonic``'s clock.
        sequence_length: Output tokens so far, this chunk included.
        counts: None where nothing was drafted since the chunk before, unless it is the last; and from
            ``generate_target``.
        seed: Key of the noise that the tokens were sampled with; asking with it again gives the same
            answer. Comes with the last chunk; None from a server that does not tell.
        draft_length: What decided it: "adaptive" or a fixed number; "" before the last chunk, and from
            ``generate_target``.
        log_probs: Natural logarithm of the probability of each of ``output_ids``; empty if not asked for.
        top_log_probs: For each of them the likeliest tokens at its place and their log probabilities,
            the likeliest first; empty if not asked for.
        arm: Who answered, in the last chunk of ``router``; else "".
        fallback_from: Arms that were to answer before that one and did not.
    """

    text: str
    output_ids: tuple[int, ...]
    accepted_mask: tuple[bool, ...]
    finish_reason: str
    received_at_s: float
    sequence_length: int
    counts: SpeculationCounts | None = None
    seed: int | None = None
    draft_length: str = ""
    log_probs: tuple[float, ...] = ()
    top_log_probs: TopLogProbs = ()
    arm: str = ""
    fallback_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """A complete answer. Times are in seconds.

    Attributes:
        text: The whole text.
        output_ids: All output tokens; ``end_id`` is not among them.
        accepted_mask: For each of ``output_ids`` whether it was an accepted draft token; empty from
            ``generate_target``, which has no draft.
        finish_reason: "stop" after ``end_id`` or a stop word, "length" at ``max_tokens``.
        num_rounds: Target passes; 0 from ``generate_target``, which does not count them.
        total_draft_tokens: Draft tokens proposed.
        total_accepted_draft_tokens: Those that the target accepted.
        accepted_per_position: As in ``SpeculationCounts``.
        ttft_s: From sending the request to the first output token; None if the answer was not streamed
            or is empty.
        e2e_latency_s: From sending the request to the last output token.
        seed: As in ``Chunk``.
        draft_length: As in ``Chunk``.
        log_probs: As in ``Chunk``, of all of ``output_ids``.
        top_log_probs: As in ``Chunk``, of all of ``output_ids``.
        draft_lengths: Draft tokens of each round that came in a chunk of its own, in their order.
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
    draft_lengths: tuple[int, ...] = ()
    arm: str = ""
    fallback_from: tuple[str, ...] = ()

    @property
    def num_output_tokens(self) -> int:
        """Length of ``output_ids``."""
        return len(self.output_ids)

    @property
    def itl_s(self) -> float | None:
        """Time per output token after the first: (e2e - ttft) / (tokens - 1).

        None below two tokens or without streaming. One round brings several tokens in one chunk, so
        this is not the gap between chunks.
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
    """Read one response.

    Args:
        outputs: Tensor name -> its values, flattened; text as ``str`` or UTF-8 ``bytes``.
        received_at_s: On ``time.monotonic``'s clock.

    Raises:
        InternalError: An output is missing or the response contradicts itself.
    """
    try:
        counts = None
        if "num_rounds" in outputs:
            counts = SpeculationCounts(
                num_rounds=int(outputs["num_rounds"][0]),
                total_draft_tokens=int(outputs["total_draft_tokens"][0]),
                total_accepted_draft_tokens=int(outputs["total_accepted_draft_tokens"][0]),
                accepted_per_position=tuple(int(count) for count in outputs["accepted_per_position"]),
            )
        output_ids = tuple(int(token_id) for token_id in outputs["output_ids"])
        chunk = Chunk(
            text=_text(outputs["text_output"]),
            output_ids=output_ids,
            accepted_mask=tuple(bool(accepted) for accepted in outputs.get("accepted_mask", ()))
            or (False,) * len(output_ids),
            finish_reason=_text(outputs["finish_reason"]),
            received_at_s=received_at_s,
            sequence_length=int(outputs["sequence_length"][0]),
            counts=counts,
            seed=int(outputs["output_seed"][0]) if "output_seed" in outputs else None,
            draft_length=_text(outputs["draft_length"]) if "draft_length" in outputs else "",
            log_probs=tuple(float(value) for value in outputs.get("output_log_probs", ())),
            top_log_probs=_top_log_probs(outputs, len(output_ids)),
            arm=_text(outputs.get("arm", ("",))),
            fallback_from=tuple(filter(None, _text(outputs.get("fallback_from", ("",))).split(","))),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _contradiction(f"{error!r} in a response with outputs {sorted(outputs)}") from error
    if len(chunk.accepted_mask) != len(chunk.output_ids):
        raise _contradiction(f"{len(chunk.accepted_mask)} marks for {len(chunk.output_ids)} tokens")
    if chunk.log_probs and len(chunk.log_probs) != len(chunk.output_ids):
        raise _contradiction(f"{len(chunk.log_probs)} log probs for {len(chunk.output_ids)} tokens")
    return chunk


def join_chunks(chunks: Sequence[Chunk], sent_at_s: float, *, streamed: bool) -> Generation:
    """Put an answer together.

    Args:
        chunks: All chunks of one answer, in the order of arrival.
        sent_at_s: When the request was sent, on the clock of ``Chunk.received_at_s``.
        streamed: Whether the first chunk tells when the first token was ready.

    Raises:
        InternalError: A chunk is missing.
    """
    output_ids = tuple(token_id for chunk in chunks for token_id in chunk.output_ids)
    if not chunks or not chunks[-1].finish_reason:
        raise _contradiction(f"no finish_reason after {len(output_ids)} tokens")
    if chunks[-1].sequence_length != len(output_ids):
        told = chunks[-1].sequence_length
        raise _contradiction(f"sequence_length={told}, {len(output_ids)} tokens received")
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
        draft_lengths=_draft_lengths(chunks),
        arm=chunks[-1].arm,
        fallback_from=chunks[-1].fallback_from,
    )


def _draft_lengths(chunks: Sequence[Chunk]) -> tuple[int, ...]:
    lengths: list[int] = []
    if chunks[-1].counts is None:  # no draft
        return ()
    num_rounds = num_drafted = 0
    for chunk in chunks:
        if chunk.counts is None:  # nothing was drafted: a token for each round
            lengths.extend(0 for _ in chunk.output_ids)
            num_rounds += len(chunk.output_ids)
            continue
        if chunk.counts.num_rounds == num_rounds + 1:  # else the chunk held rounds back, or has none
            lengths.append(chunk.counts.total_draft_tokens - num_drafted)
        num_rounds, num_drafted = chunk.counts.num_rounds, chunk.counts.total_draft_tokens
    return tuple(lengths)


def _top_log_probs(outputs: Mapping[str, Sequence[Any]], num_tokens: int) -> TopLogProbs:
    """Alternatives of each token; they come as one row of numbers, as many for each token."""
    ids = [int(token_id) for token_id in outputs.get("top_log_prob_ids", ())]
    values = [float(value) for value in outputs.get("top_log_probs", ())]
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


def _contradiction(values: str) -> InternalError:
    return InternalError(
        "the server's answer contradicts itself",
        values=values,
        limit="every response carries its tokens and the last one the counts, and none is lost",
        remedy="check that client and server are of the same release; the server's log may say more",
    )
