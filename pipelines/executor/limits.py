"""Limits of an executor, and the checks by which it refuses requests."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import InvalidRequestError, PromptTooLongError, RecipeError
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.request import MIN_STEP_TOKENS, Request
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

    def num_slots(self, num_classes: int) -> int:
        """Return how many slots for recurrent states there are: for each place, and as many kept ones."""
        return (num_classes + 1) * self.max_batch_size

    def check(self, engine: EngineConfig, num_classes: int) -> None:
        """Check that a step can split a prompt, and that the blocks hold a request of full length per class.

        Raises:
            RecipeError: The limits contradict each other.
        """
        num_blocks_needed = num_classes * -(-self.max_seq_len // engine.kv_block_size)
        if self.max_num_tokens < MIN_STEP_TOKENS or self.num_kv_blocks <= num_blocks_needed:
            raise RecipeError(
                f"the serving limits contradict each other: max_num_tokens={self.max_num_tokens}, "
                f"num_kv_blocks={self.num_kv_blocks}, max_seq_len={self.max_seq_len}; they need "
                f"max_num_tokens >= {MIN_STEP_TOKENS} and num_kv_blocks > {num_blocks_needed}",
                "raise num_blocks or lower max_seq_len in the recipe",
            )


def check_draft_tokens(asked: GenerationRequest, limits: ExecutorLimits, engine: EngineConfig) -> None:
    """Check the number of draft tokens that a request brings along.

    Raises:
        InvalidRequestError: They are too many for a step, or for the log of recurrent states.
    """
    most = limits.max_num_tokens - 1
    if engine.state_bytes:
        most = min(most, MAX_LOGGED_ROWS - 1)
    check_range("the number of draft tokens", len(asked.draft_input_ids), 0, most, "send fewer draft tokens")


def check_translated(request: Request, max_seq_len: int) -> None:
    """Check the length of a request in the tokens that its engine reads.

    Raises:
        PromptTooLongError: It is empty or too long.
    """
    num_tokens, max_tokens = request.num_tokens, request.asked.max_tokens
    if num_tokens and num_tokens + max_tokens <= max_seq_len:
        return
    raise PromptTooLongError(
        f"the draft cannot read the context: its tokenizer makes {num_tokens} tokens of "
        f"{len(request.asked.input_ids)}, with max_tokens={max_tokens} and max_seq_len={max_seq_len}",
        "raise max_seq_len in the recipe to draft in longer contexts",
    )


def check_states(asked: GenerationRequest) -> None:
    """Check that a trained head has hidden states to draft from.

    Raises:
        InvalidRequestError: There are none.
    """
    if asked.target_states is None or not asked.target_states.parts:
        raise InvalidRequestError(
            f"request {asked.request_id} has no hidden states, from which a trained head drafts",
            "send the states that the target returned with its last output",
        )
