"""Counts the files and the forms that a streamed chat request passes: ``python -m tools.request_walk``.

The engine and the front door run in this process, with the repository of a run directory that a server has
rendered; the processes around them, such as Triton, do not see the request. A file counts if one of its
functions is called between the request and its last event. The chat renderer is a process of its own and runs
one file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import secrets
import socket
import sys
import threading
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import httpx

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.triton.models import ROUTER, rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.own_server import OwnServer
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.serving import serve
from pipelines.triton.backend.header import VARIABLE
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.speculative_model import load_speculative_model

ROOT = Path(__file__).resolve().parents[1]
RENDERER = "pipelines/text/chat_rendering.py"

FORMS = {
    "the request": (
        ("pipelines.front_door.endpoints.chat", "ChatBody"),
        ("pipelines.wire.request", "CompletionRequest"),
        ("pipelines.wire.messages", "EngineRequest"),
        ("pipelines.speculation.request", "GenerationRequest"),
        ("pipelines.executor.request", "Request"),
    ),
    "the answer": (
        ("pipelines.speculation.request", "Output"),
        ("pipelines.speculation.loop", "Round"),
        ("pipelines.wire.chunk", "Chunk"),
        ("pipelines.front_door.messages.message", "Content"),
        ("pipelines.front_door.messages.message", "MessageDocument"),
    ),
}
"""Types that hold one request, or its answer, one after the other. The answer ends as an event."""

_BODY = {"messages": [{"role": "user", "content": "def main():"}], "max_tokens": 24, "stream": True}


class Calls:
    """Notes the files whose functions are called."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(ROOT / "pipelines")):
            self.files.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))


def main() -> None:
    """Print the files and the forms."""
    parser = argparse.ArgumentParser(prog="python -m tools.request_walk", description=__doc__)
    parser.add_argument("directory", type=Path, help=".run/RECIPE of a model with a chat template")
    parser.add_argument("--files", action="store_true", help="print the names of the files too")
    options = parser.parse_args()
    for walk, forms in FORMS.items():
        names = [getattr(importlib.import_module(module), name).__name__ for module, name in forms]
        print(f"{len(names) + (walk == 'the answer')} forms of {walk}: {', '.join(names)}")
    os.environ[VARIABLE] = secrets.token_hex()  # the models answer nobody without a key
    calls = Calls()
    asyncio.run(_walk(options.directory.resolve(), calls))
    files = sorted({*calls.files, RENDERER})
    print(f"{len(files)} files")
    if options.files:
        print("\n".join(files))


async def _walk(directory: Path, calls: Calls) -> None:
    metric = SimpleNamespace(set=lambda value: None, increment=lambda value: None, observe=lambda value: None)
    family: Any = lambda **given: SimpleNamespace(Metric=lambda **labels: metric)  # noqa: E731
    family.COUNTER, family.GAUGE, family.HISTOGRAM = range(3)
    backend = SimpleNamespace(MetricFamily=family, TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
    engine = load_speculative_model(ModelParameters(LOOP, rendered_parameters(directory, LOOP)), backend)
    model = ServedModel.of(ServedFiles.read(directory))
    router = OwnServer(model, rendered_parameters(directory, ROUTER))
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/chat/completions"
    stopping = asyncio.Event()
    metrics = MetricsPage(model, "127.0.0.1:1")
    serving = asyncio.create_task(
        serve(model, router, metrics, FrontDoorSettings(), listening, stopping, drain_s=0.0)
    )
    async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
        await client.post(url, json=_BODY)  # what is loaded for the first request is not on the way
        calls.is_on = True
        response = await client.post(url, json=_BODY)
        calls.is_on = False
    assert "data: [DONE]" in response.text, response.text
    stopping.set()
    await serving
    await asyncio.to_thread(engine.close)


if __name__ == "__main__":
    main()
