"""Defines a chunk of an answer, which goes from the engine through the router to the client."""

from __future__ import annotations

from dataclasses import dataclass

TOKEN_SOURCES = ("target", "draft_model", "lookup", "grammar")
"""Sources of output tokens, by their numbers in ``Chunk.token_sources``."""

TopLogProbs = tuple[tuple[tuple[int, float], ...], ...]
"""Ids and log probabilities of alternatives, for each token."""


@dataclass(frozen=True)
class SpeculationCounts:
    """Counts of the loop from the start of the answer to this chunk.

    Attributes:
        num_rounds: Number of target passes.
        total_draft_tokens: Number of proposed draft tokens.
        total_accepted_draft_tokens: Number of accepted draft tokens.
        accepted_per_position: Entry i: number of rounds that accepted draft position i.
        accepted_prediction_tokens: Number of accepted draft tokens from the request's prediction.
        rejected_prediction_tokens: Number of others from it that the target verified.
    """

    num_rounds: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int
    accepted_per_position: tuple[int, ...]
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True)
class Chunk:
    """New tokens of an answer. The engine sends them without text, which the router adds.

    Attributes:
        text: New text.
        output_ids: New tokens, without the prompt.
        accepted_mask: For each of ``output_ids``, whether it was an accepted draft token.
        finish_reason: "" until the last chunk, then "stop" or "length".
        received_at_s: Time of arrival on ``time.monotonic``'s clock.
        sequence_length: Number of output tokens so far, including this chunk.
        counts: Counts of speculation; None from the target alone. A client gets them if something was drafted
            since the previous chunk, and at the end.
        drafted_per_round: Draft tokens that each target pass of the answer verified; only in the last chunk.
        seed: Seed of the sampling noise; a request with it gives the same answer. A client gets it in the
            last chunk; None if the server does not return it.
        num_cached: Tokens of the prompt that were not computed anew; a client gets it in the last chunk.
        draft_length: "adaptive" or a fixed number; "" from the target alone. A client gets it in the last
            chunk.
        log_probs: Natural log probability of each of ``output_ids``; empty if not requested.
        top_log_probs: For each of them, the likeliest tokens and their log probabilities, likeliest first;
            empty if not requested.
        prompt_log_probs: Natural log probability of each token of the prompt but the first, in the first
            chunk; else empty.
        prompt_top_log_probs: For each of them, as ``top_log_probs``.
        arm: Arm that answered, in the last chunk of ``router``; else "".
        fallback_from: Arms that were asked before that one and did not answer.
        token_sources: For each of ``output_ids``, where it came from: a number of ``TOKEN_SOURCES``.
        continued_elsewhere: Whether a server that may give other answers continued what another one began;
            in the last chunk of a front door's fleet.
        text_length: Bytes of the tokens that are text, up to a stop word; 0 where ``text`` has it.
        cum_log_prob: Sum of all log probabilities so far.
        accepted_per_round: Accepted draft tokens of each target pass; only in the last chunk.
        scores_prompt: Whether the request asks for ``prompt_log_probs``.
    """

    text: str
    output_ids: tuple[int, ...]
    accepted_mask: tuple[bool, ...]
    finish_reason: str
    received_at_s: float
    sequence_length: int
    counts: SpeculationCounts | None = None
    drafted_per_round: tuple[int, ...] = ()
    seed: int | None = None
    num_cached: int = 0
    draft_length: str = ""
    log_probs: tuple[float, ...] = ()
    top_log_probs: TopLogProbs = ()
    prompt_log_probs: tuple[float, ...] = ()
    prompt_top_log_probs: TopLogProbs = ()
    arm: str = ""
    fallback_from: tuple[str, ...] = ()
    token_sources: tuple[int, ...] = ()
    continued_elsewhere: bool = False
    text_length: int = 0
    cum_log_prob: float = 0.0
    accepted_per_round: tuple[int, ...] = ()
    scores_prompt: bool = False

    @property
    def is_last(self) -> bool:
        """Whether it ends the answer."""
        return bool(self.finish_reason)
