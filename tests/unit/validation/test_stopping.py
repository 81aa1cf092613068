"""Tests of a proof whose time is over while a server does not answer: the requests under way are cancelled.

Without that, each of these tests would hang.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.client import Client
from pipelines.command_line.prompts import Prompts
from pipelines.validation import own
from pipelines.validation.__main__ import main
from pipelines.validation.exact.proof import prove
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.size import Size
from pipelines.validation.stopping import StoppedError, cancelled_when_stopped, stop, stoppable, stopped_early
from tests.support.scripted_http import scripted_http
from tests.support.stand_in_openai import Faults, stand_in_openai
from tests.support.stand_in_server import StandInServer, response
from tests.unit.validation.scripted_proof import PLAN, PROMPTS, schedule

QUIET_S = 3600.0


@contextmanager
def stopping_once(is_asked: Callable[[], object]) -> Iterator[None]:
    """Let the time of the proof be over once a call returns, as the timer of ``stopped_early`` does."""
    with ThreadPoolExecutor() as pool:
        done = pool.submit(lambda: (is_asked(), stop("its 5 min are over", "a remedy")))
        yield
        done.result()


@contextmanager
def silent_server() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the address of a server that never answers, and a call that returns when it is asked."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        yield f"127.0.0.1:{port}", lambda: accepted.append(listening.accept()[0])
    for each in accepted:
        each.close()


def test_servers_that_fall_silent_end_no_later_and_what_was_compared_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"text {number}" for number in range(8)), encoding="utf-8")
    size = ["--num-prompts", "8", "--max-tokens", "4", "--prompts", str(prompts)]
    hanging = Faults(hangs=0.2, hang_s=QUIET_S)  # not at the prompt that tells its abilities
    with stand_in_openai() as control, stand_in_openai(hanging) as judged:
        asked = ["--control", control.url, "--against", judged.url, *size, "--json"]
        with stopping_once(judged.is_hanging.wait):
            code = main([*asked, "--html", str(tmp_path / "verify.html")])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, document["verdict"]) == (3, "inconclusive")
    verdict, compared, _, rest = document["sections"]
    assert "its 5 min are over" in verdict["summary"]
    audits = compared["figures"]["audits"].values()
    assert 0 < sum(each["questions"] for each in audits) < 8, "what was not asked is not compared"
    assert not any(each["missing"] for each in audits)
    assert rest["figures"]["failures"]["candidate"] == {}, "a request that we end is no failure"


def test_a_server_that_is_silent_where_the_control_answers_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the verdict was "inconclusive", after 20 minutes."""
    with stand_in_openai() as control, stand_in_openai(Faults(hangs=0.2, hang_s=QUIET_S)) as judged:
        asked = [
            "--control",
            control.url,
            "--against",
            judged.url,
            "--num-prompts",
            "12",
            "--max-tokens",
            "4",
        ]
        code = main([*asked, "--timeout-s", "1", "--html", str(tmp_path / "verify.html"), "--json"])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, document["verdict"]) == (1, "fail")
    assert "the server fell silent for 1 s" in document["sections"][0]["summary"]


def test_a_server_that_answers_nothing_at_all_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with silent_server() as (address, is_asked), stopping_once(is_asked):
        url = f"http://{address}"
        assert main(["--control", url, "--against", url, "--json"]) == 3
    printed = capsys.readouterr().out
    assert "requests under way are cancelled" in printed
    assert "its 5 min are over" in json.loads(printed.splitlines()[-1])["error"]


def test_nobody_waits_for_a_busy_server_when_the_time_is_over() -> None:
    with scripted_http((503, {"Retry-After": "60"}, b"")) as script, stopped_early(None):
        connection = Connection(Endpoint(script.url), timeout_s=QUIET_S)

        def is_asked() -> None:
            while not script.requests:
                time.sleep(0.01)

        with stopping_once(is_asked), pytest.raises(StoppedError):
            stoppable(connection.get)("/v1/models")


@contextmanager
def falling_silent(num_answered: int) -> Iterator[tuple[StandInServer, threading.Event]]:
    """Run a server of ours that answers so many requests and no more, and an event for the first of these."""
    is_asked, is_over = threading.Event(), threading.Event()

    def script(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        if len(server.requests) > num_answered:
            is_asked.set()
            is_over.wait()
        yield response("a", [1], 1, "length", draft_length="")

    with StandInServer(script) as server:
        try:
            yield server, is_asked
        finally:
            is_over.set()


@pytest.mark.parametrize("num_answered", [0, 9])
def test_a_server_of_ours_that_falls_silent_is_left(num_answered: int) -> None:
    with (
        falling_silent(num_answered) as (server, is_asked),
        Client.connect(server.grpc_url) as client,
        stopped_early(None),
        cancelled_when_stopped(client.close),
        stopping_once(is_asked.wait),
    ):
        passes = prove(PLAN, schedule(PLAN).items(), "nonce", client)
    proof = Proof(passes, PLAN.max_rate, stopped=StoppedError("stopped"))
    assert all(isinstance(error, StoppedError) for result in passes for error in result.missing)
    assert sum(result.totals.answers_missing for result in passes) > 0
    assert len(passes) < len(schedule(PLAN)) and "the rest was not asked" in proof.lacks()[0]


def test_the_command_for_a_server_of_ours_cancels_what_is_under_way() -> None:
    prompts = Prompts("made", {"text": PROMPTS})
    with falling_silent(0) as (server, is_asked), stopped_early(None), stopping_once(is_asked.wait):
        asked = server.grpc_url, "demo", Size(5), math.inf, prompts, "equality", []
        with pytest.raises(StoppedError, match="its 5 min are over"):
            stoppable(own.verify_own)(*asked)
