"""Tests of loading and unloading a second pair, unnoticed by clients of the first one."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from build.rendering.second_pair import render_second_pair
from pipelines.canary.controller.candidate import CandidatePair, remove
from pipelines.canary.controller.repository_api import RepositoryApi
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.errors import CanaryError, DraftproofError
from tests.integration.conftest import (
    grpc_client,
    http_client,
    read_gauge,
    repository_api,
    responses,
    tiny_recipe,
    wait_until,
)
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

pytestmark = pytest.mark.triton

REQUESTS = [
    CompletionRequest("import os\n", max_tokens=24, end_id=-1),
    CompletionRequest("def main():\n", max_tokens=24, end_id=-1, temperature=0.9, seed=7),
]
READINESS = ("/v2/models/generate/ready", "/v2/health/ready")
PROMPT = {
    "input_ids": np.array([[5, 9, 200, 31]], np.int32),
    "input_lengths": np.array([[4]], np.int32),
    "streaming": np.array([[True]]),
}


@pytest.fixture(scope="module")
def other_draft(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the target of ``tiny_pair`` with another draft."""
    return build_tiny_pair(tmp_path_factory.mktemp("other"), draft="self", num_threads=1)


@dataclass
class Served:
    server: Server
    candidate: CandidatePair
    api: RepositoryApi

    @property
    def model(self) -> str:
        return self.candidate.pair.speculative_model


@pytest.fixture(scope="module")
def one_pair(render: Callable[..., Path]) -> Iterator[Server]:
    with ready_server(render("tiny-beside", "router")) as server:
        yield server


@pytest.fixture
def served(one_pair: Server, other_draft: tuple[Path, Path]) -> Iterator[Served]:
    with repository_api(one_pair) as api:
        served = Served(one_pair, second_pair(one_pair.directory, other_draft), api)
        yield served
        api.unload(served.model)
        remove(one_pair.directory, served.candidate.pair)


def second_pair(run: Path, engines: tuple[Path, Path]) -> CandidatePair:
    record = render_second_pair(tiny_recipe("tiny-other"), *engines, run)
    candidate = CandidatePair.read(run, record.speculative_model)
    assert candidate.same_target
    return candidate


@dataclass
class Traffic:
    """The results of the clients of the pair in service."""

    num_answers: int = 0
    wrong: list[Any] = field(default_factory=list)
    not_ready: list[Any] = field(default_factory=list)


@contextmanager
def traffic(server: Server) -> Iterator[Traffic]:
    """Run streaming clients over both protocols, which know the right answers, and readiness probes."""
    with grpc_client(server) as client:
        expected = [client.generate(request, "generate_target").output_ids for request in REQUESTS]
    seen, stop = Traffic(), threading.Event()

    def ask(connect: Callable[[Server], Client]) -> None:
        with connect(server) as client:
            while not stop.is_set():
                for request, right in zip(REQUESTS, expected, strict=True):
                    try:
                        answer: Any = client.stream(request, "generate").result().output_ids
                    except DraftproofError as error:
                        answer = error
                    seen.num_answers += 1
                    if answer != right:
                        seen.wrong.append(answer)
                    stop.wait(0.05)  # leaves the processor to other tests

    def probe() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.ports.http}", trust_env=False) as http:
            while not stop.wait(0.02):
                asked = {path: http.get(path).status_code for path in READINESS}
                if set(asked.values()) != {200} or not server.is_ready():
                    seen.not_ready.append(asked)

    threads = [threading.Thread(target=ask, args=[connect]) for connect in (grpc_client, http_client)]
    threads.append(threading.Thread(target=probe))
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def tokens_of(server: Server, model: str, max_tokens: int) -> list[int]:
    """Return the answer of a loop or target that is asked by its own name."""
    return [token for tokens in tokens_as_they_arrive(server, model, max_tokens) for token in tokens]


def tokens_as_they_arrive(server: Server, model: str, max_tokens: int) -> Iterator[list[int]]:
    tensors = {**PROMPT, "request_output_len": np.array([[max_tokens]], np.int32)}
    tensors["end_id"] = np.array([[-1]], np.int32)
    for response in responses(server, tensors, model):
        yield [int(token) for token in response["output_ids"].ravel()]


def processes(server: Server, model: str) -> list[int]:
    """Return the ids of the processes that run a model's Python."""
    found = []
    folder = f"{server.directory / 'model_repository' / model}/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = os.fsdecode((process / "cmdline").read_bytes())
            if "triton_python_backend_stub" in command and folder in command:
                found.append(int(process.name))
    return found


def shared_memory(server: Server) -> int:
    regions = len(list(Path("/dev/shm").glob(f"{prefix_of(server.directory)}*")))
    assert regions > 0
    return regions


def test_pairs_come_and_go_under_traffic(served: Served) -> None:
    server, api, model = served.server, served.api, served.model
    right = tokens_of(server, "speculative", 40)
    regions = shared_memory(server)
    with traffic(server) as seen:
        for _ in range(2):
            api.load(model)
            assert api.is_ready(model)
            before = seen.num_answers
            assert tokens_of(server, model, 40) == right
            assert read_gauge(server, "draftproof_requests_waiting", model=model, engine="pair") == 0
            assert wait_until(lambda: seen.num_answers > before + 4)
            api.unload(model)
            assert not api.is_ready(model)
            assert processes(server, model) == []
    assert seen.num_answers > 20
    assert seen.wrong == []
    assert seen.not_ready == []
    assert shared_memory(server) == regions
    assert server.process.is_alive


def test_requests_in_work_are_answered_before_their_pair_goes(served: Served) -> None:
    """Unloading waits for open requests; new ones are refused in one line."""
    server, api, model = served.server, served.api, served.model
    right = tokens_of(server, "speculative", 400)
    api.load(model)
    answers: list[list[int]] = []
    begun = [threading.Event() for _ in range(2)]

    def ask(has_begun: threading.Event) -> None:
        tokens = []
        for response in tokens_as_they_arrive(server, model, 400):
            has_begun.set()
            tokens += response
        answers.append(tokens)

    threads = [threading.Thread(target=ask, args=[event]) for event in begun]
    with traffic(server) as seen:
        for thread in threads:
            thread.start()
        assert all(event.wait(120) for event in begun)
        api.unload(model)
        for thread in threads:
            thread.join()
        with pytest.raises(DraftproofError):
            tokens_of(server, model, 4)
    assert answers == [right, right]
    assert (seen.wrong, seen.not_ready) == ([], [])


@pytest.mark.long
def test_a_pair_that_is_asked_without_pause_can_be_unloaded(served: Served) -> None:
    """Its gauges are written until the end, into memory of Triton's that goes with the model."""
    server, api, model = served.server, served.api, served.model
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with suppress(DraftproofError):
                tokens_of(server, model, 8)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            api.load(model)
            time.sleep(0.3)
            api.unload(model)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert server.process.is_alive
    assert server.is_ready()
    assert len(tokens_of(server, "speculative", 8)) == 8


@pytest.mark.long
def test_a_pair_that_cannot_be_loaded_is_named_and_harms_nobody(served: Served) -> None:
    server, api, model = served.server, served.api, served.model
    config = server.directory / "model_repository" / model / "config.pbtxt"
    good = config.read_text()
    broken = re.sub(r'("draft_engine_dir" value: { string_value: ")[^"]*', r"\1/nowhere", good)
    assert broken != good
    config.write_text(broken)
    with traffic(server) as seen:
        with pytest.raises(CanaryError, match=rf"could not load a model; {model}: HTTP 500, .*/nowhere.*; "):
            api.load(model)
        assert not api.is_ready(model)
        api.unload(model)
        config.write_text(good)
        api.load(model)
        assert api.is_ready(model)
        api.unload(model)
    assert (seen.wrong, seen.not_ready) == ([], [])


def test_a_pair_whose_process_is_killed_comes_back(served: Served) -> None:
    server, api, model = served.server, served.api, served.model
    right = tokens_of(server, "speculative", 12)
    with traffic(server) as seen:
        api.load(model)
        [process] = processes(server, model)
        os.kill(process, signal.SIGKILL)
        api.unload(model)
        api.load(model)
        assert tokens_of(server, model, 12) == right
    assert (seen.wrong, seen.not_ready) == ([], [])


def test_what_is_asked_again_is_done_once(served: Served) -> None:
    """A rollout that was killed repeats its last action, because it does not know whether it was done."""
    server, api, model = served.server, served.api, served.model
    api.unload(model)
    api.load(model)
    [process] = processes(server, model)
    api.load(model)
    assert processes(server, model) == [process]
    api.unload(model)
    api.unload(model)
    remove(server.directory, served.candidate.pair)
    remove(server.directory, served.candidate.pair)
    assert model not in [state.name for state in api.index()]
    api.unload(model)
    with pytest.raises(CanaryError, match=f"could not load a model; {model}: HTTP 500"):
        api.load(model)
    assert server.is_ready()


@pytest.mark.long
def test_a_server_that_starts_again_loads_no_pair_on_trial(
    render: Callable[..., Path], other_draft: tuple[Path, Path]
) -> None:
    run = render("tiny-again", "router")
    with ready_server(run) as server, repository_api(server) as api:
        model = second_pair(run, other_draft).pair.speculative_model
        api.load(model)
    with ready_server(run) as again, repository_api(again) as api:
        assert not api.is_ready(model)
        assert api.is_ready("generate")
