"""Tests of a front door's router with real engines: arms change, and answers stay the same.

The router runs in this process, and the target alone stands in for a candidate.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc

from pipelines.asyncio_thread import AsyncioThread
from pipelines.client import Chunk, Client, CompletionRequest
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.server import Server
from pipelines.deploy.triton.models import ROUTER, rendered_parameters
from pipelines.errors import InvalidRequestError
from pipelines.front_door.own_server import OwnServer
from pipelines.front_door.served_model import ServedModel
from pipelines.router.arms import ArmTable, Bands, write_table
from pipelines.router.observation import Observation
from pipelines.router.observation_log import log_end, read_observations
from tests.integration.conftest import grpc_client, http_client, kserve_inputs, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

CONNECT = {"grpc": grpc_client, "http": http_client}
# Every third prompt is token ids.
REQUESTS = tuple(
    CompletionRequest(
        f"def f{number}(" if number % 3 else "",
        max_tokens=12 + number,
        temperature=number % 2 * 0.8,
        seed=number,
        prompt_ids=() if number % 3 else (700 + number, 5, 400),
    )
    for number in range(8)
)


@pytest.fixture(scope="module")
def directory(server: Server) -> Path:
    return server.directory


class Door:
    """The router of a front door."""

    def __init__(self, directory: Path) -> None:
        self._thread = AsyncioThread("door")
        self._thread.start()
        self._server = self._thread.spawn(self._make(directory)).result()

    def close(self) -> None:
        self._thread.spawn(self._server.close()).result()
        self._thread.stop()

    def stream(self, request: CompletionRequest) -> list[Chunk]:
        return self._thread.spawn(self._chunks(request)).result()

    async def _make(self, directory: Path) -> OwnServer:
        return OwnServer(ServedModel.of(ServedFiles.read(directory)), rendered_parameters(directory, ROUTER))

    async def _chunks(self, request: CompletionRequest) -> list[Chunk]:
        async with aclosing(self._server.stream(request, streaming=True)) as chunks:
            return [chunk async for chunk in chunks]


def ids_of(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(token_id for chunk in chunks for token_id in chunk.output_ids)


@pytest.fixture(scope="module")
def door(directory: Path) -> Iterator[Door]:
    door = Door(directory)
    yield door
    door.close()


@pytest.fixture
def follow(directory: Path) -> Iterator[Callable[..., None]]:
    """Write a table of arms."""
    generations = itertools.count(1)

    def write(candidate: float, socket: str = "target", **others: Any) -> None:
        table = ArmTable(
            generation=next(generations),
            canary_id="c1",
            salt="s",
            stable=str(directory / "speculative.sock"),
            candidate=str(directory / f"{socket}.sock"),
            candidate_weight=candidate,
            bands=Bands(2, 4),
            lease_until_s=time.time() + 60,
            **{"shadow": None, "replays_match": "stable", "slow_after_s": 5.0, **others},
        )
        write_table(directory / "arms.json", table)

    yield write
    (directory / "arms.json").unlink(missing_ok=True)


@pytest.fixture
def noted(directory: Path) -> Callable[[int], list[Observation]]:
    """Wait for a number of observations since the test began."""
    path = directory / "observations.sqlite"
    begin = log_end(path)

    def wait(number: int) -> list[Observation]:
        assert wait_until(lambda: len(read_observations(path, begin)[0]) >= number)
        return read_observations(path, begin)[0]

    return wait


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_without_a_table_it_answers_as_generate(server: Server, scheme: str) -> None:
    with CONNECT[scheme](server) as client:
        for request in REQUESTS:
            expected = client.generate(request, "generate_target")
            streamed = client.stream(request, "router").result()
            whole = client.generate(request, "router")
            assert streamed.output_ids == whole.output_ids == expected.output_ids
            assert streamed.text == whole.text == expected.text
            assert (streamed.arm, whole.arm, whole.fallback_from) == ("stable", "stable", ())
            assert streamed.num_rounds


def test_kserve_calls_take_no_part_in_a_rollout(server: Server, follow: Callable[..., None]) -> None:
    follow(1.0)
    kserve = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
    result = kserve.infer("router", kserve_inputs(b"def main(", 20))
    kserve.close()
    with grpc_client(server) as client:
        expected = client.generate(CompletionRequest("def main(", max_tokens=20), "generate")
    assert tuple(result.as_numpy("output_ids").ravel().tolist()) == expected.output_ids
    assert result.as_numpy("arm").item() == b"stable"


def test_arms_change_under_load_and_every_answer_stays_the_same(
    server: Server, door: Door, follow: Callable[..., None], noted: Callable[[int], list[Observation]]
) -> None:
    with grpc_client(server) as client:
        expected = [client.generate(request, "generate_target").output_ids for request in REQUESTS]

    def ask(number: int) -> str:
        chunks = door.stream(REQUESTS[number % len(REQUESTS)])
        assert ids_of(chunks) == expected[number % len(REQUESTS)]
        assert chunks[-1].fallback_from == ()
        return chunks[-1].arm

    follow(0.0)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(30)]
        asked[0].result()
        follow(0.5)
        asked += [pool.submit(ask, number) for number in range(30)]
        assert {each.result() for each in asked} == {"stable", "candidate"}
        follow(1.0)
        last = [pool.submit(ask, number) for number in range(10)]
        assert {each.result() for each in last} == {"candidate"}
    assert {each.arm for each in noted(70)[-10:]} == {"candidate"}


def test_a_client_names_its_arm(client_of_router: Client) -> None:
    answer = client_of_router.generate(CompletionRequest("def f(", max_tokens=4, arm="control"), "router")
    assert (answer.arm, answer.num_rounds) == ("control", 0)
    with pytest.raises(InvalidRequestError, match="there is no such arm"):
        client_of_router.generate(CompletionRequest("def f(", arm="candidate"), "router")
    with pytest.raises(InvalidRequestError, match="arm cannot be chosen"):
        client_of_router.generate(CompletionRequest("def f(", arm="stable"), "generate")


@pytest.fixture
def client_of_router(server: Server) -> Iterator[Client]:
    with http_client(server) as client:
        yield client
