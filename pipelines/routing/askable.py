"""What ``failover`` asks: arms that give answers in chunks, whatever these are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeVar

from pipelines.routing.arms import Arm
from pipelines.routing.breaker import Outcome

Chunk = TypeVar("Chunk")


class Arms(Protocol[Chunk]):
    """What an answer is asked of, and what its chunks are made of."""

    def ask(self, arm: Arm) -> AsyncGenerator[Chunk, None]:
        """The request from its start, streamed; a chunk has a token at least, or is the last one.

        It is closed after the last chunk; closing it earlier cancels the answer. What it raises is the arm's
        failure, but for errors of the client's own: nonsense in the request, its deadline, its cancellation.
        """

    def go_on(self, arm: Arm, output_ids: Sequence[int], last: Chunk) -> AsyncGenerator[Chunk, None]:
        """As ``ask``, but what follows these output tokens, which the client has; ``last`` came last."""

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        """Note that an arm is asked; what it returns is called once, with what became of that."""

    def may_hedge(self, arm: Arm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        A slow candidate always may, since its stand-in carries that load without a rollout too. Where the
        whole server is slow, a second request for each makes it slower.
        """

    def output_ids(self, chunk: Chunk) -> Sequence[int]:
        """New output tokens that a chunk carries."""

    def is_last(self, chunk: Chunk) -> bool:
        """Whether the answer ends with it; a stream that ends otherwise has failed."""

    def without_first(self, chunk: Chunk, num_tokens: int) -> Chunk:
        """The chunk less its first tokens, perhaps all; its counts of the whole answer stay."""
