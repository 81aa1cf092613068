"""Real Triton servers on tiny engines with random weights."""

from __future__ import annotations

import dataclasses
import json
import queue
import re
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype

from build.recipe import Recipe, parse_recipe
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Generation, Timeouts
from pipelines.client.refusals import refusal
from pipelines.deploy.server import Server
from tests.stand_in_tensorrt_llm import repository as tensorrt_llm
from tests.stand_in_tensorrt_llm.served import Served
from tests.support import kserve_http
from tests.support.ready_server import ready_server
from tests.support.stand_in_server import INPUT_TYPES, NUMPY_TYPES
from tests.support.tiny_engines import build_tiny_pair

MAX_BATCH_SIZE = 4
MAX_QUEUE_SIZE = 8
MAX_SEQ_LEN = 512
MAX_DRAFT_LEN = 8

TIMEOUTS = Timeouts(connect_s=60, read_s=120, total_s=240)

LOG_CHARACTERS = 8000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Iterator[None]:
    """Add the logs of its servers to the report of a test that failed, without Triton's tables."""
    report = yield
    if report.failed:
        values = [
            each
            for value in item.funcargs.values()
            for each in (value if isinstance(value, tuple) else (value,))
        ]
        servers = (getattr(value, "server", value) for value in values)
        logs = {server.log for server in servers if isinstance(server, Server)}
        for log in sorted(filter(Path.is_file, logs)):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line[:1] not in "|+"]
            report.sections.append((str(log), "\n".join(lines)[-LOG_CHARACTERS:]))
    return report


def tiny_recipe(name: str) -> Recipe:
    """Return a recipe whose serving limits are small enough to reach in a test."""
    engine = {"checkpoint": "unused", "kv_cache": {"num_blocks": 128}}
    serving = {
        "max_batch_size": MAX_BATCH_SIZE,
        "max_num_tokens": 128,
        "max_seq_len": MAX_SEQ_LEN,
        "max_queue_size": MAX_QUEUE_SIZE,
        "max_draft_len": MAX_DRAFT_LEN,
        "num_draft_tokens": 4,
    }
    document = {"name": name, "runtime": "embedded", "target": engine, "draft": engine, "serving": serving}
    return parse_recipe(document, Path("tiny.yaml"))


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the engine directories of draft and target, whose steps have one thread.

    A second one would mostly wait: several servers run at once. Steps of two threads are compared
    in ``tests/unit/executor`` and ``tests/exact``.
    """
    return build_tiny_pair(tmp_path_factory.mktemp("engines"), draft="noisy", num_threads=1)


@pytest.fixture(scope="session")
def render(tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a run directory with a rendered repository for a recipe of the given name.

    With names of text models, it has only these beside the pair's own. Each model is a process, so a server
    with fewer starts sooner.
    """

    def make(name: str, *text_models: str) -> Path:
        run = tmp_path_factory.mktemp("run")
        repository = render_recipe(tiny_recipe(name), *tiny_pair, run)
        if text_models:
            keep_models(repository, "speculative", *text_models)
        return repository.parent

    return make


def keep_models(repository: Path, *models: str) -> None:
    """Remove all other models from a repository."""
    for folder in repository.iterdir():
        if folder.name not in models:
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server(render: Callable[..., Path]) -> Iterator[Server]:
    """Return a ready server whose loop holds both engines.

    Files that use it have the mark ``xdist_group("server")``, so that a run starts it once.
    """
    with ready_server(render("tiny")) as running:
        yield running


@pytest.fixture(scope="session")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a ready server for TensorRT-LLM, with stand-ins for NVIDIA's two models."""
    directory = tensorrt_llm.render(tmp_path_factory.mktemp("nvidia"), tensorrt_llm.recipe())
    with ready_server(directory) as running:
        yield Served(running, directory)


def read_gauge(server: Server, name: str, **labels: str) -> float:
    """Return one value from the metrics port."""
    url = f"http://127.0.0.1:{server.ports.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=120) as response:
        text = response.read().decode()
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            return float(found[2])
    raise LookupError(f"{name} {labels} is not on the metrics port")


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    """Poll until a condition holds; return False on timeout, which a busy machine must not reach."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def grpc_client(server: Server) -> Client:
    return Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", TIMEOUTS, server.key)


def http_client(server: Server) -> Client:
    return kserve_http.connect(f"http://127.0.0.1:{server.ports.http}", TIMEOUTS, server.key)


def target_alone(client: Client, request: CompletionRequest) -> Generation:
    """Return the control's answer to the same request, without the draft length."""
    return client.generate(dataclasses.replace(request, num_draft_tokens=None), "generate_target")


def post(server: Server, body: dict[str, Any] | bytes, model: str = "generate") -> httpx.Response:
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}/generate"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()  # NaN may be sent, too
    return httpx.post(
        url, content=content, timeout=120, trust_env=False, headers={"draftproof-key": server.key}
    )


def stream_infer(
    server: Server, tensors: Mapping[str, npt.NDArray[Any]], model: str
) -> list[dict[str, npt.NDArray[Any]]]:
    """Stream over gRPC ``ModelStreamInfer`` and return each response's outputs, with their shapes.

    Raises:
        DraftproofError: The server answered with an error.
    """
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    found = []
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)), headers={"draftproof-key": server.key}
        )
        client.async_stream_infer(model, infer_inputs(tensors), enable_empty_final_response=True)
        while True:
            result, error = answers.get(timeout=120)
            if error is not None:
                raise refusal(error.message())
            reply = result.get_response()
            if reply.outputs:
                found.append({output.name: result.as_numpy(output.name) for output in reply.outputs})
            if reply.parameters["triton_final_response"].bool_param:
                return found


def infer_inputs(tensors: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
    inputs = []
    for name, array in tensors.items():
        tensor = tritonclient.grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def text_tensors(**values: Any) -> dict[str, npt.NDArray[Any]]:
    """Return inputs of the text-level models; text as ``str`` or ``bytes``, rows as lists."""
    types = {**NUMPY_TYPES, "BYTES": np.object_}
    tensors = {}
    for name, value in values.items():
        row = [item.encode() if isinstance(item, str) else item for item in np.ravel(np.array(value, object))]
        tensors[name] = np.array([row], dtype=types[INPUT_TYPES[name]])
    return tensors


def kserve_inputs(prompt: bytes, max_tokens: int) -> list[Any]:
    return infer_inputs(text_tensors(text_input=prompt, max_tokens=max_tokens))


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: Server) -> Any:
    with {"grpc": grpc_client, "http": http_client}[request.param](server) as connected:
        yield connected
