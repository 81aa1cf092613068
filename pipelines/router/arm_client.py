"""Defines how ``failover`` sends a request to an arm and reads its chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeVar

from pipelines.router.breaker import Outcome

Chunk = TypeVar("Chunk")
AskedArm = TypeVar("AskedArm", bound=str, contravariant=True)


class ArmClient(Protocol[AskedArm, Chunk]):
    """Sends one request to arms and interprets their chunks.

    An arm is anything with a name that can answer: a pair of one server, or a server of a fleet.
    """

    def ask(self, arm: AskedArm) -> AsyncGenerator[Chunk, None]:
        """Stream the answer from its start; each chunk has at least one token or is the last one.

        The generator is closed after the last chunk; closing it earlier cancels the answer. Its exceptions
        are failures of the arm, except those that the client caused: an invalid request, its deadline, its
        cancellation.
        """

    def resume(self, arm: AskedArm, output_ids: Sequence[int], last: Chunk) -> AsyncGenerator[Chunk, None]:
        """Stream what follows the output tokens that the client has; ``last`` is its latest chunk."""

    def begin(self, arm: AskedArm) -> Callable[[Outcome], None]:
        """Record that an arm is asked; the returned function is called once, with the outcome."""

    def may_hedge(self, arm: AskedArm) -> bool:
        """Whether the next arm may be asked because this one is slow.

        Hedging every request of a slow server would make it slower still.
        """

    def output_ids(self, chunk: Chunk) -> Sequence[int]:
        """Return the new output tokens of a chunk."""

    def is_last(self, chunk: Chunk) -> bool:
        """Whether a chunk ends the answer; a stream that ends without one has failed."""

    def without_first(self, chunk: Chunk, num_tokens: int) -> Chunk:
        """Return the chunk without its first tokens; its counts over the whole answer stay."""
