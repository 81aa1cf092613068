r"""Python client of a Draftproof server over gRPC, with streaming and typed errors.

::

    with Client.connect("grpc://127.0.0.1:8001") as client:
        print(client.generate(CompletionRequest("def area(radius):\n")).text)
        for chunk in client.stream(CompletionRequest("import ", max_tokens=16)):
            print(chunk.text, end="")
"""

from typing import TYPE_CHECKING, Any

from pipelines.client.connection import Timeouts
from pipelines.client.generation import Generation
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.request import CompletionRequest

__all__ = [
    "Chunk",
    "Client",
    "CompletionRequest",
    "Generation",
    "GenerationStream",
    "SpeculationCounts",
    "Timeouts",
]

if TYPE_CHECKING:
    from pipelines.client.client import Client, GenerationStream
else:

    def __getattr__(name: str) -> Any:
        """Import what needs tritonclient, which the installed package has behind an extra."""
        if name not in ("Client", "GenerationStream"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from pipelines.client import client
        except ModuleNotFoundError as error:
            remedy = "run: pip install 'draftproof[client]'"
            raise ModuleNotFoundError(f"no module {error.name}; {remedy}", name=error.name) from None
        return getattr(client, name)
