r"""Python client of a Draftproof server over gRPC, with streaming and typed errors.

::

    with Client.connect("grpc://127.0.0.1:8001") as client:
        print(client.generate(CompletionRequest("def area(radius):\n")).text)
        for chunk in client.stream(CompletionRequest("import ", max_tokens=16)):
            print(chunk.text, end="")
"""

from pipelines.client.client import Client, GenerationStream
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
