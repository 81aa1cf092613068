"""Tests of rollouts between real servers, each with a front door, through OpenAI's client."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from build.repository import render_recipe
from pipelines.canary.report.record import judgement
from pipelines.deploy.server import Server
from tests.integration.conftest import tiny_recipe
from tests.integration.front_door.conftest import MODEL, openai_client, url_of
from tests.support.fault_proxy import fault_proxy
from tests.support.planted_faults import BY_NAME
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.upstreams.running import Running, ended, running, write_plan

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

MAX_TOKENS = 10  # more than a probe of the fault proxy has
_WITH_IDS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def other_draft(door_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with the same target, whose draft guesses at random."""
    engines = build_tiny_pair(tmp_path_factory.mktemp("other"), draft="random", num_threads=1)
    shutil.copy(door_pair[1] / "chat.json", engines[1])
    directory = render_recipe(tiny_recipe(MODEL), *engines, tmp_path_factory.mktemp("run")).parent
    with ready_server(directory, with_openai=True) as server:
        yield server


def ask(client: openai.OpenAI, number: int) -> str:
    """Ask for a greedy answer, half of the time as a stream."""
    prompt = f"def function_{number}("
    if number // 2 % 2:
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, extra_body=_WITH_IDS
        )
        return answer.choices[0].text
    events = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, stream=True
    )
    return "".join(event.choices[0].text for event in events if event.choices)


@contextmanager
def clients(service: Running) -> Iterator[dict[int, str]]:
    """Ask without a pause during the block; yields the answers by their number."""
    answers: dict[int, str] = {}
    ending = threading.Event()
    failures: list[Exception] = []

    def work(first: int) -> None:
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            for number in itertools.count(first, 2):
                if ending.is_set():
                    return
                try:
                    answers[number] = ask(client, number)
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=(each,)) for each in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.long
def test_a_server_with_another_draft_is_promoted_and_every_answer_is_the_targets(
    door: Server, other_draft: Server, tmp_path: Path
) -> None:
    write_plan(tmp_path, {"runtime": "exact"})
    with running(tmp_path, {"url": url_of(door)}, {"url": url_of(other_draft)}) as service:
        with clients(service) as answers:
            record = ended(service)
        judged = judgement(record)
        assert (record.phase, judged.verdict) == ("promoted", "pass"), judged.reason
        assert service.stop()[0] == 0
    arms = {each.arm for each in record.requests}
    assert arms == {"stable", "candidate"}
    with openai_client(door) as client:
        for number in sorted(answers)[::20]:
            assert answers[number] == ask(client, number)


def test_a_server_that_changes_tokens_is_rolled_back_beside_a_fleet(door: Server, tmp_path: Path) -> None:
    write_plan(tmp_path, {"runtime": "exact"})
    with (
        fault_proxy(url_of(door), BY_NAME["a token is replaced"], one_in=4) as faulty,
        running(tmp_path, {"servers": [f"127.0.0.1:{door.ports.grpc}"]}, {"url": faulty.url}) as service,
        clients(service),
    ):
        record = ended(service)
    assert record.phase == "rolled_back"
    assert judgement(record).reason.startswith("fail: answers (tokens of ")
    assert json.loads(json.dumps(record.divergences[0]))["expected_of"] == "stable"
