"""Real Triton servers on tiny engines with random weights."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc

from build.recipe import Recipe, parse_recipe
from build.repository import render_recipe
from pipelines.client import Client, Timeouts
from pipelines.deploy import Ports, Server
from tests.tiny_engines import build_tiny_pair

MAX_BATCH_SIZE = 4
MAX_QUEUE_SIZE = 8
MAX_SEQ_LEN = 512
MAX_DRAFT_LEN = 8

TIMEOUTS = Timeouts(connect_s=5, read_s=30, write_s=5, total_s=60)


def tiny_recipe(name: str, engine_access: str) -> Recipe:
    """Serving limits small enough to reach them in a test."""
    engine = {"checkpoint": "unused", "kv_cache": {"num_blocks": 128}}
    serving = {
        "max_batch_size": MAX_BATCH_SIZE,
        "max_num_tokens": 128,
        "max_seq_len": MAX_SEQ_LEN,
        "max_queue_size": MAX_QUEUE_SIZE,
        "max_draft_len": MAX_DRAFT_LEN,
        "num_draft_tokens": 4,
        "engine_access": engine_access,
    }
    document = {"name": name, "runtime": "embedded", "target": engine, "draft": engine, "serving": serving}
    return parse_recipe(document, Path("tiny.yaml"))


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Engine directories of draft and target."""
    return build_tiny_pair(tmp_path_factory.mktemp("engines"), draft="noisy")


@pytest.fixture(scope="session")
def render(
    tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """Make a run directory with a rendered repository: (recipe name, engine access) -> directory."""

    def make(name: str, engine_access: str) -> Path:
        run = tmp_path_factory.mktemp("run")
        return render_recipe(tiny_recipe(name, engine_access), *tiny_pair, run).parent

    return make


@pytest.fixture(scope="session")
def server(render: Callable[[str, str], Path]) -> Iterator[Server]:
    """A ready server whose loop holds both engines."""
    with Server.start(render("tiny", "in_process"), Ports.free()) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def bls_server(render: Callable[[str, str], Path]) -> Iterator[Server]:
    """A ready server whose loop calls the models draft and target."""
    with Server.start(render("tiny-bls", "bls"), Ports.free()) as running:
        running.wait_ready()
        yield running


def read_gauge(server: Server, name: str, **labels: str) -> float:
    """One figure from the metrics port."""
    url = f"http://127.0.0.1:{server.ports.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=5) as response:
        text = response.read().decode()
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if found and all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
            return float(found[2])
    raise LookupError(f"{name} {labels} is not on the metrics port")


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Poll until a condition holds; False if it did not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def grpc_client(server: Server) -> Client:
    return Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", TIMEOUTS)


def http_client(server: Server) -> Client:
    return Client.connect(f"http://127.0.0.1:{server.ports.http}", TIMEOUTS)


def post(server: Server, body: dict[str, Any] | bytes, model: str = "generate") -> httpx.Response:
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}/generate"
    if isinstance(body, bytes):
        return httpx.post(url, content=body, timeout=30, trust_env=False)
    return httpx.post(url, json=body, timeout=30, trust_env=False)


def kserve_inputs(prompt: bytes, max_tokens: int) -> list[Any]:
    values = {
        "text_input": np.array([[prompt]], dtype=np.object_),
        "max_tokens": np.array([[max_tokens]], dtype=np.int32),
    }
    inputs = []
    for name, datatype in (("text_input", "BYTES"), ("max_tokens", "INT32")):
        tensor = tritonclient.grpc.InferInput(name, [1, 1], datatype)
        tensor.set_data_from_numpy(values[name])
        inputs.append(tensor)
    return inputs


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: Server) -> Any:
    with {"grpc": grpc_client, "http": http_client}[request.param](server) as connected:
        yield connected
