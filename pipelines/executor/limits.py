"""Limits of an executor, and the errors with which it refuses requests or ends them."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import (
    EngineFailedError,
    InvalidRequestError,
    PromptTooLongError,
    RecipeError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.executor.engine import EngineConfig
from pipelines.executor.sequence import MIN_STEP_TOKENS, Sequence
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import check_range


@dataclass(frozen=True)
class ExecutorLimits:
    """Limits of an executor.

    Attributes:
        max_batch_size: Maximum of concurrent requests.
        max_num_tokens: Maximum of tokens per step.
        max_seq_len: Maximum of tokens per request, prompt and output together.
        max_queue_size: Maximum of waiting requests; further ones are refused.
        num_kv_blocks: Blocks of the KV cache, including the scratch block.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_queue_size: int
    num_kv_blocks: int

    def num_slots(self, num_lanes: int) -> int:
        """Return how many slots for recurrent states there are: for each place, and as many kept ones."""
        return (num_lanes + 1) * self.max_batch_size

    def check(self, engine: EngineConfig, num_lanes: int) -> None:
        """Check that a step can split a prompt, and that each lane's blocks hold a request of full length.

        Raises:
            RecipeError: The limits contradict each other.
        """
        num_blocks_needed = num_lanes * -(-self.max_seq_len // engine.kv_block_size)
        if self.max_num_tokens < MIN_STEP_TOKENS or self.num_kv_blocks <= num_blocks_needed:
            raise RecipeError(
                "the serving limits contradict each other",
                values=f"max_num_tokens={self.max_num_tokens}, num_kv_blocks={self.num_kv_blocks}, "
                f"max_seq_len={self.max_seq_len}",
                limit=f"max_num_tokens >= {MIN_STEP_TOKENS} and num_kv_blocks > {num_blocks_needed}, "
                "so that a request of full length fits into each lane's share",
                remedy="raise num_blocks or lower max_seq_len in the recipe",
            )


def queue_is_full(num_waiting: int, num_running: int, limits: ExecutorLimits) -> ServerBusyError:
    """Return the error for a request that finds no place."""
    return ServerBusyError(
        "the queue is full",
        values=f"{num_waiting} requests wait, {num_running} run",
        limit=f"max_queue_size={limits.max_queue_size}, max_batch_size={limits.max_batch_size}",
        remedy="send the request again later, or serve with a larger max_queue_size",
    )


def check_draft_tokens(
    request: GenerationRequest, limits: ExecutorLimits, engine: EngineConfig, *, are_translated: bool
) -> None:
    """Check the draft tokens that a request brings along.

    Args:
        request: The request.
        limits: Limits of the executor.
        engine: Its engine.
        are_translated: Whether the engine reads the tokens of another tokenizer.

    Raises:
        InvalidRequestError: They are too many, or the engine cannot verify any.
    """
    num_draft = len(request.draft_input_ids)
    if num_draft and are_translated:
        raise InvalidRequestError(
            "this engine cannot verify draft tokens",
            values=f"{num_draft} draft tokens, engine '{engine.role}'",
            limit="it reads the tokens of another tokenizer, and a draft token may be several of them",
            remedy="send draft tokens to the target",
        )
    most = limits.max_num_tokens - 1
    if engine.state_bytes:
        most = min(most, MAX_LOGGED_ROWS - 1)
    check_range("the number of draft tokens", num_draft, 0, most, "send fewer draft tokens")


def check_translated(sequence: Sequence, max_seq_len: int) -> None:
    """Check the length of a request in the tokens that its engine reads.

    Raises:
        PromptTooLongError: It is empty or too long.
    """
    num_tokens, max_tokens = sequence.num_tokens, sequence.request.max_tokens
    if num_tokens and num_tokens + max_tokens <= max_seq_len:
        return
    raise PromptTooLongError(
        "the draft cannot read the context, which its tokenizer splits in another way",
        values=f"{len(sequence.request.input_ids)} tokens are {num_tokens} of the draft, "
        f"+ {max_tokens} max_tokens",
        limit=f"1 to max_seq_len={max_seq_len} tokens of the draft",
        remedy="raise max_seq_len in the recipe to draft in longer contexts",
    )


def check_states(request: GenerationRequest) -> None:
    """Check that a trained head has hidden states to draft from.

    Raises:
        InvalidRequestError: There are none.
    """
    if request.target_states is None or not request.target_states.parts:
        raise InvalidRequestError(
            "a trained head drafts only from the hidden states of its target",
            values=f"request {request.request_id} has none",
            limit="those of at least one position",
            remedy="send the states that the target returned with its last output",
        )


def deadline_passed(sequence: Sequence, late_s: float) -> RequestTimeoutError:
    """Return the error for a request whose deadline passed ``late_s`` seconds ago."""
    return RequestTimeoutError(
        "the request's deadline passed",
        values=f"request {sequence.request.request_id}, {sequence.num_output} tokens done, "
        f"{late_s:.3f} s late",
        limit="the deadline sent with the request",
        remedy="allow more time, lower max_tokens, or add capacity",
    )


def step_failed(sequence: Sequence, role: str) -> EngineFailedError:
    """Return the error for a request whose step failed in the engine of a role."""
    return EngineFailedError(
        "an engine step failed",
        values=f"request {sequence.request.request_id}, engine '{role}'",
        limit="the request cannot be continued",
        remedy="send it again; the server's log has the cause",
    )
