"""Asks both models the same and compares: over gRPC in streams, over HTTP whole, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.client import Chunk, Client, CompletionRequest, Generation
from pipelines.prompts import Prompt
from pipelines.validation.comparison import Divergence, first_divergence
from pipelines.validation.plan import SPECULATIVE, TARGET_ALONE


@dataclass(frozen=True)
class Pair:
    """The two answers to one request.

    Attributes:
        prompt: What was continued.
        transport: "grpc", streamed, or "http", whole.
        temperature: 0 is greedy.
        target: The target alone.
        speculative: Draft and target together.
    """

    prompt: Prompt
    transport: str
    temperature: float
    target: Generation
    speculative: Generation

    @property
    def divergence(self) -> Divergence | None:
        """Where the answers differ; None if they are equal."""
        return first_divergence(self.target, self.speculative)

    @property
    def speed_up(self) -> float:
        """End-to-end latency of the target alone over that of both."""
        return self.target.e2e_latency_s / self.speculative.e2e_latency_s


def ask_pair(
    client: Client,
    prompt: Prompt,
    request: CompletionRequest,
    *,
    transport: str,
    target_first: bool,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> Pair:
    """Ask one model, then the other.

    Args:
        client: Of either transport.
        prompt: Where ``request`` comes from.
        request: What to ask.
        transport: "grpc" asks for streams, "http" for whole answers.
        target_first: The order; take turns, so that neither always runs on the cooler machine.
        on_chunk: Given the chunks of the speculative stream as they arrive.

    Raises:
        DraftproofError: An answer failed.
    """

    def speculative() -> Generation:
        if transport == "http":
            return client.generate(request, SPECULATIVE)
        with client.stream(request, SPECULATIVE) as stream:
            for chunk in stream:
                on_chunk(chunk)
            return stream.result()

    def target() -> Generation:
        if transport == "http":
            return client.generate(request, TARGET_ALONE)
        with client.stream(request, TARGET_ALONE) as stream:
            return stream.result()

    if target_first:
        first, second = target(), speculative()
    else:
        second, first = speculative(), target()
    return Pair(prompt, transport, request.temperature, target=first, speculative=second)
