r"""Python client of a Draftproof server over gRPC and HTTP, with streaming and typed errors.

::

    with Client.connect("grpc://127.0.0.1:8001") as client:
        print(client.generate(CompletionRequest("def area(radius):\n")).text)
        for chunk in client.stream(CompletionRequest("import ", max_tokens=16)):
            print(chunk.text, end="")
"""

from pipelines.client.client import Client, GenerationStream
from pipelines.client.generation import Chunk, Generation, SpeculationCounts
from pipelines.client.request import CompletionRequest
from pipelines.client.timeouts import Timeouts

__all__ = [
    "Chunk",
    "Client",
    "CompletionRequest",
    "Generation",
    "GenerationStream",
    "SpeculationCounts",
    "Timeouts",
]
