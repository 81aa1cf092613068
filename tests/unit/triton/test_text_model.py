"""Tests of the text model: open requests are counted and limited, and long texts delay nobody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.client.connection import FILE_VARIABLE, key_of_environment
from pipelines.command_line.running_server import known_key
from pipelines.errors import (
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerStartError,
    from_wire,
)
from pipelines.manifest import sha256_file
from pipelines.router import failover, preprocessing
from pipelines.triton.backend.header import read_header, server_key
from pipelines.triton.backend.outputs import scalar_tensor, text_tensor
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.model import TextModel
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder
from tests.support.fake_triton import SERVER_KEY, FakeRequest, fake_backend
from tests.support.tiny_engines import write_tokenizer

MAX_BATCH_SIZE, MAX_QUEUE_SIZE = 1, 2
MAX_OPEN = 3 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE)  # as many as three engines accept
LONG = b"import os\n" * 1000


class EchoEngine:
    """A socket that answers with the prompt: at once, or when a test says so."""

    def __init__(self, path: Path) -> None:
        self.requests: list[EngineRequest] = []
        self.is_waiting = False
        self._server = CallServer(path, self._take)
        self.path = path

    def close(self) -> None:
        self._server.close()

    def _take(self, request: EngineRequest, outlet: Outlet[Chunk]) -> None:
        self.requests.append(request)
        if not self.is_waiting:
            Responder(outlet, request.request_id).send(echo(request), is_final=True)


def echo(request: EngineRequest) -> Chunk:
    ids = request.input_ids
    return Chunk("", ids, (False,) * len(ids), "stop", 0.0, len(ids), text_length=10**6)


def start_text_model(folder: Path, engine: Path, **sizes: int) -> TextModel:
    """Start a text model with a tiny tokenizer whose arms are both at one socket's folder."""
    tokenizer = folder / "tokenizer.json"
    write_tokenizer(tokenizer)
    values = {
        **{"tokenizer_file": str(tokenizer), "tokenizer_sha256": sha256_file(tokenizer)},
        **{"stable_socket": str(engine), "control_socket": str(engine.with_name("absent.sock"))},
        **{"arms_file": str(folder / "arms.json"), "observations_file": str(folder / "observations")},
        **{name: str(value) for name, value in sizes.items()},
    }
    return TextModel(ModelParameters("router", values, tuple(TEXT_INPUTS)), fake_backend())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EchoEngine]:
    engine = EchoEngine(tmp_path / "engine.sock")
    yield engine
    engine.close()


@pytest.fixture
def model(tmp_path: Path, engine: EchoEngine) -> Iterator[TextModel]:
    sizes = {"max_seq_len": 100_000, "max_batch_size": MAX_BATCH_SIZE, "max_queue_size": MAX_QUEUE_SIZE}
    model = start_text_model(tmp_path, engine.path, **sizes)
    yield model
    model.close()


def request_of(text: bytes = b"x", request_id: Any = "", **others: Any) -> FakeRequest:
    parameters = others.pop("parameters", "")
    tensors = {"text_input": text_tensor(text), "max_tokens": scalar_tensor(4, np.int32), **others}
    return FakeRequest(tensors, request_id, parameters, requested=("text_output",))


def text_of(request: FakeRequest) -> bytes:
    response = request.sender.wait()[-1]
    assert response is not None and response.error is None, response and response.error
    return bytes(response.tensors["text_output"].item())


def error_of(request: FakeRequest) -> Any:
    return from_wire(request.sender.error.message())


def test_nobody_waits_for_long_texts_to_be_tokenized(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    tokenize = preprocessing.Preprocessing.__call__

    def slow(self: Any, inputs: Any) -> Any:
        if not self.is_quick(inputs):
            assert may_go_on.wait(120)
        return tokenize(self, inputs)

    monkeypatch.setattr(preprocessing.Preprocessing, "__call__", slow)
    long_ones = [request_of(LONG) for _ in range(4)]
    model.execute(long_ones)
    short_ones = [request_of(b"import os") for _ in range(4)]
    model.execute(short_ones)
    assert [text_of(request) for request in short_ones] == [b"import os"] * 4
    assert not any(request.sender.sent for request in long_ones)
    may_go_on.set()
    assert [text_of(request) for request in long_ones] == [LONG] * 4


def test_a_deadline_passes_while_a_text_waits_to_be_tokenized(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(preprocessing.Preprocessing, "__call__", lambda *_: may_go_on.wait(120))
    request = request_of(LONG, parameters='{"timeout": 1000}')
    model.execute([request])
    error = error_of(request)
    may_go_on.set()
    assert type(error) is RequestTimeoutError and error.remedy


@pytest.mark.parametrize("text", [b"x", LONG])
def test_places_of_clients_that_leave_are_freed(model: TextModel, engine: EchoEngine, text: bytes) -> None:
    engine.is_waiting = True
    gone = [request_of(text) for _ in range(MAX_OPEN)]
    model.execute(gone)
    for request in gone:
        request.sender.cancelled = True
    assert {type(error_of(request)) for request in gone} == {RequestCancelledError}
    while model._router.routing.num_open:
        pass
    engine.is_waiting = False
    again = [request_of() for _ in range(MAX_OPEN)]
    model.execute(again)
    assert [text_of(request) for request in again] == [b"x"] * MAX_OPEN


def test_the_arm_of_the_gateway_answers_alone(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "RETURNS_WITHIN_S", 0.5)
    alone = request_of(parameters='{"draftproof_arm": "control"}')
    model.execute([alone])
    assert error_of(alone) is not None, "its socket does not exist, and the stable pair may not stand in"
    chosen = request_of(parameters='{"draftproof_arm": "stable"}')
    model.execute([chosen])
    assert text_of(chosen) == b"x"


@pytest.mark.parametrize(
    "parameters",
    [
        *({"draftproof_key": value} for value in ("", "guess", SERVER_KEY[:-1], SERVER_KEY + "x")),
        *({"draftproof_key": value} for value in (None, True, 1, [SERVER_KEY], "é", "\ud800")),
        {"draftproof_key": None, "draftproof_ping": True},
    ],
)
def test_models_refuse_a_request_without_the_key(parameters: dict[str, Any]) -> None:
    request = FakeRequest({}, parameters=json.dumps(parameters))
    with pytest.raises(InvalidRequestError, match="did not come through the gateway") as refused:
        read_header(request, (), server_key())
    assert SERVER_KEY not in str(refused.value)


def test_with_the_key_a_ping_is_told_from_a_request() -> None:
    assert not read_header(FakeRequest({}), (), server_key()).is_ping
    assert read_header(FakeRequest({}, parameters='{"draftproof_ping": true}'), (), server_key()).is_ping


def test_a_model_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_KEY", "")
    with pytest.raises(ServerStartError, match="DRAFTPROOF_KEY is not set"):
        server_key()
    monkeypatch.delenv("DRAFTPROOF_KEY")
    with pytest.raises(ServerStartError, match="DRAFTPROOF_KEY is not set"):
        server_key()


def test_operators_name_the_file_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert key_of_environment() == ""
    (tmp_path / "key").write_text("secret\n")
    with known_key(tmp_path):
        assert key_of_environment() == "secret"
    assert key_of_environment() == "", "it is known for as long as the server is asked"
    monkeypatch.setenv(FILE_VARIABLE, "before")
    with pytest.raises(KeyError), known_key(tmp_path):
        raise KeyError
    with pytest.raises(InvalidRequestError, match="before"):
        key_of_environment()
    for content in (b"\xff", None):
        file = tmp_path / "other"
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        monkeypatch.setenv(FILE_VARIABLE, str(file))
        with pytest.raises(InvalidRequestError, match="key of the server cannot be read"):
            key_of_environment()
