"""Limits of an executor, which must fit its engine."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import RecipeError
from pipelines.executor.engine import EngineConfig
from pipelines.executor.sequence import MIN_STEP_TOKENS


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
