"""Tests of client, verify, bench and demo against a real Triton server on tiny engines."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.command_line import running_server
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.demo.__main__ import converse
from pipelines.demo.summary import figures_of, verdict_of
from pipelines.deploy.__main__ import set_draft_length
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.errors import RequestTimeoutError, ServerUnavailableError
from pipelines.process import processes_with
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.__main__ import main as verify
from pipelines.validation.exact.comparing import first_difference
from pipelines.validation.exact.plan import LOADS
from tests.integration.conftest import (
    MAX_BATCH_SIZE,
    MAX_DRAFT_LEN,
    MAX_QUEUE_SIZE,
    http_client,
    read_gauge,
    wait_until,
)
from tests.support.demo_prompts import HELD_OUT, held_out_prompts

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

PROMPTS = held_out_prompts(16)


@pytest.fixture
def url(server: Server) -> str:
    return grpc_url(server)


def grpc_url(server: Server) -> str:
    return f"grpc://127.0.0.1:{server.ports.grpc}"


def last_document(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text.splitlines()[-1])
    return document


@pytest.mark.parametrize("streaming", [False, True])
def test_a_deadline_ends_the_request_at_the_server_too(url: str, server: Server, streaming: bool) -> None:
    request = CompletionRequest("def main(", max_tokens=450, num_draft_tokens=0)
    with Client.connect(url, Timeouts(total_s=0.05)) as client, pytest.raises(RequestTimeoutError):
        if streaming:
            client.stream(request).result()
        else:
            client.generate(request)
    assert wait_until(lambda: read_gauge(server, "draftproof_requests_running", engine="target") == 0)


@pytest.fixture
def adaptive(server: Server) -> Iterator[None]:
    """Make the server choose the draft length, whatever its recipe says."""
    setting = set_draft_length(server.directory, "adaptive")
    yield
    setting.unlink()


# Each kind of sampling needs 24; by day test_parameters.py and the next test ask for each.
@pytest.mark.parametrize("num_prompts", [12, pytest.param(24, marks=pytest.mark.long)])
@pytest.mark.usefixtures("adaptive")
def test_the_proof_passes_and_counts(
    num_prompts: int, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "verify.html"
    files = ["--prompts", str(HELD_OUT), "--html", str(page)]
    size = ["--num-prompts", str(num_prompts), "--max-tokens", "5"]
    code = verify(["--url", grpc_url(server), "--quick", "--only", "equality", *size, "--json", *files])
    document = last_document(capsys.readouterr().out)
    equality, alone, passes = document["sections"]
    drafted = [
        each["total_draft_tokens"]
        for each in passes["figures"]["passes"]
        if each["draft_length"] == "adaptive"
    ]
    # Whether a draft of the tiny pair pays depends on what the server has timed until then.
    assert (code, document["verdict"]) == ((0, "pass") if any(drafted) else (3, "inconclusive"))
    assert all(group["prompts"] >= num_prompts - 1 for group in equality["figures"]["groups"])
    assert all(group["tokens_with_log_probs"] for group in equality["figures"]["groups"])
    for group in equality["figures"]["groups"]:
        assert group["prompt_tokens_with_log_probs"] or num_prompts < 24
    assert alone["figures"]["tokens_compared"] > 50  # minus what stop words cut off
    asked = passes["figures"]["passes"]
    assert sum(each["requests_cut_off"] for each in asked) > 5
    most = MAX_BATCH_SIZE + MAX_QUEUE_SIZE
    assert {each["num_at_once"] for each in asked} == {load for load in LOADS if load < most}
    assert {each["draft_length"] for each in asked} == {"", "adaptive", f"0-{MAX_DRAFT_LEN}"}
    assert "PASS" in page.read_text(encoding="utf-8")


def test_the_prompt_s_log_probabilities_are_equal_with_every_draft_and_one_other_bit_is_found(
    server: Server,
) -> None:
    asked = CompletionRequest(PROMPTS[0].text, max_tokens=12, num_log_probs=2, return_prompt_log_probs=True)
    with Client.connect(grpc_url(server)) as client:
        expected = client.generate(asked, "generate_target")
        for length in (*range(MAX_DRAFT_LEN + 1), None):
            given = client.generate(replace(asked, num_draft_tokens=length), "generate")
            assert len(given.prompt_log_probs) > 1 and (length == 0 or given.total_draft_tokens)
            assert first_difference("p", expected, given, asked) is None
            *others, last = given.prompt_log_probs
            changed = replace(given, prompt_log_probs=(*others, math.nextafter(last, -math.inf)))
            found = first_difference("p", expected, changed, asked)
            place = f"log probabilities of prompt token {len(given.prompt_log_probs)}"
            assert found is not None and found.place == place


@pytest.fixture(autouse=True)
def key_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable that names the key file for programs that are given an address."""
    monkeypatch.setenv("DRAFTPROOF_KEY_FILE", str(server.directory / "key"))


def test_the_demonstration_shows_equal_answers(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with Client.connect(grpc_url(server)) as client:
        engine = engine_directories(client)["target"]
        vocabulary = Vocabulary.from_file(engine / "tokenizer.json")
        pairs = converse(Prompts("made", {"code": PROMPTS}), 2, 12, client, vocabulary)
    shown = capsys.readouterr().out
    assert "«" in shown
    assert "DIFFERENT" not in shown
    assert verdict_of(pairs)[0] == "pass"
    assert len(pairs) == 16 + 2 and len(figures_of(pairs)) == 1


def test_a_server_of_its_own_is_started_and_stopped_and_its_death_is_noticed(
    render: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = render("own", "router")
    monkeypatch.setattr(running_server, "run_directory", lambda recipe: directory)
    monkeypatch.setattr(running_server, "build_recipe", lambda module, recipe, report: None)
    with running_server.running_server("", "own") as address:
        own = Server.running(directory)
        assert own is not None
        with running_server.running_server("", "own") as again:  # a running server is used, and left running
            assert again == address
        with Client.connect(address) as client, http_client(own) as over_http:
            assert client.is_ready()
            request = CompletionRequest("def main(", max_tokens=450, num_draft_tokens=0)
            begun = client.stream(request)
            next(begun)
            prefix = prefix_of(directory)
            models = [model.pid for model, _ in processes_with(prefix)]
            for model in models:  # which finish no answer before their server is dead
                os.kill(model, signal.SIGSTOP)
            try:
                with ThreadPoolExecutor() as threads:
                    waiting = threads.submit(lambda: over_http.stream(request).result())
                    unheard = client.stream(request)
                    os.kill(own.process.pid, signal.SIGKILL)
                    with pytest.raises(ServerUnavailableError):
                        unheard.result()
                    with pytest.raises(ServerUnavailableError):
                        waiting.result()
            finally:
                for model in models:
                    os.kill(model, signal.SIGCONT)
            assert not client.is_ready()
            assert wait_until(lambda: not [*processes_with(prefix)]), "the models end by themselves"
            assert wait_until(lambda: not list(Path("/dev/shm").glob(f"{prefix}*")))
    assert Server.running(directory) is None
