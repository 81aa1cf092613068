"""Send the same request to both models and compare the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.client import Chunk, Client, CompletionRequest, Generation
from pipelines.client.comparison import Divergence, first_divergence
from pipelines.client.model_names import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt


@dataclass(frozen=True)
class Pair:
    """The two answers to one request.

    Attributes:
        prompt: Prompt of the request.
        transport: "grpc" (streamed) or "http" (not streamed).
        temperature: Temperature of the request; 0 is greedy.
        target: Answer of the target alone.
        speculative: Answer of draft and target together.
    """

    prompt: Prompt
    transport: str
    temperature: float
    target: Generation
    speculative: Generation

    @property
    def divergence(self) -> Divergence | None:
        """Return where the answers first differ; None if they are equal."""
        return first_divergence(self.target, self.speculative)

    @property
    def speed_up(self) -> float:
        """Return the end-to-end latency of the target alone divided by that of both together."""
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
    """Send a request to one model, then to the other.

    Args:
        client: Client for ``transport``.
        prompt: Prompt of ``request``.
        request: The request.
        transport: "grpc" streams the answers, "http" does not.
        target_first: Order of the models; alternate it, so that neither always runs on the cooler machine.
        on_chunk: Called with each chunk of the speculative stream as it arrives.

    Raises:
        DraftproofError: A request failed.
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
