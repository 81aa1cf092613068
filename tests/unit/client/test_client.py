"""Tests of the client against a stand-in server on a real socket."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pipelines.client import Client, CompletionRequest, GenerationStream, Timeouts
from pipelines.client import client as client_module
from pipelines.client.connection import address_of
from pipelines.client.tensors import infer_message
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from tests.support.stand_in_scripts import two_rounds, with_log_probs
from tests.support.stand_in_server import Refused, StandInServer, free_port, response


def hang_after_one(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    yield response("a", [5], 1)
    yield {"wait": True}


def connect(server: StandInServer, **timeouts: float) -> Client:
    return Client.connect(
        server.grpc_url, Timeouts(**{"connect_s": 2.0, "read_s": 5.0, "total_s": 20.0, **timeouts})
    )


def test_streamed_and_whole_answers_are_the_same() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        whole = client.generate(CompletionRequest("x"))
        chunks = list(client.stream(CompletionRequest("x")))
        streamed = client.stream(CompletionRequest("x")).result()
    assert [chunk.text for chunk in chunks] == ["a ü", " b"]
    assert [chunk.output_ids for chunk in chunks] == [(5, 6, 7), (8,)]
    for generation in (whole, streamed):
        assert generation.text == "a ü b"
        assert generation.output_ids == (5, 6, 7, 8)
        assert generation.accepted_mask == (True, True, False, False)
        assert generation.finish_reason == "length"
        assert (generation.num_rounds, generation.total_draft_tokens) == (2, 8)
        assert generation.total_accepted_draft_tokens == 2
        assert generation.accepted_per_position == (1, 1, 0, 0)
    assert whole.ttft_s is None and streamed.ttft_s is not None
    assert 0 < streamed.ttft_s <= streamed.e2e_latency_s


def test_the_target_alone_reports_no_speculation() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        generation = client.generate(CompletionRequest("x"), "generate_target")
    assert (generation.output_ids, generation.accepted_mask) == ((5, 6, 7, 8), ())
    assert generation.acceptance_rate is generation.mean_acceptance_length is None


def test_text_keeps_every_character_that_some_take_for_the_end_of_a_line() -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\r\ng\x1ch\U0001f600"

    def special(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        yield response(text, [5], 1, "length")

    with StandInServer(special) as server, connect(server) as client:
        assert client.stream(CompletionRequest(text)).result().text == text
        assert client.generate(CompletionRequest(text)).text == text
    assert server.requests[0][1]["text_input"] == text


def test_parameters_that_are_none_are_not_sent_and_the_largest_numbers_are() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        client.generate(CompletionRequest("x"))
        client.stream(CompletionRequest("ä", seed=2**64 - 1, resume_output_ids=(7, 8))).result()
    (_, least), (_, most) = server.requests
    for inputs in (least, most):
        assert inputs.pop("timeout") == 20_000_000  # microseconds: the server ends the request, too
    assert set(least) == {"text_input", "max_tokens", "stream"}
    assert (most["text_input"], most["stream"], most["seed"]) == ("ä", True, 2**64 - 1)
    assert most["resume_output_ids"] == [7, 8]


def test_token_ids_are_sent_instead_of_a_text() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        client.generate(CompletionRequest(prompt_ids=(5,)))
        client.generate(CompletionRequest("both", prompt_ids=(5, 6)))  # the server refuses this one
        client.generate(CompletionRequest(""))
    (_, ids), (_, both), (_, neither) = server.requests
    assert ids["input_ids"] == [5] and "text_input" not in ids
    assert (both["text_input"], both["input_ids"]) == ("both", [5, 6])
    assert neither["text_input"] == "" and "input_ids" not in neither


@pytest.mark.parametrize("ids", [(np.int64(5), 6), [5, 6], np.array([5, 6]), range(5, 7)], ids=repr)
def test_token_ids_may_come_from_numpy(ids: Any) -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        client.generate(CompletionRequest(prompt_ids=ids, max_tokens=np.int32(4)))  # type: ignore[arg-type]
    ((_, sent),) = server.requests
    assert sent["input_ids"] == [5, 6] and sent["max_tokens"] == 4


def test_seed_and_log_probs_come_back_streamed_or_not() -> None:
    request = CompletionRequest("x", num_log_probs=2)
    with StandInServer(with_log_probs) as server, connect(server) as client:
        whole = client.generate(request)
        streamed = client.stream(request).result()
    for generation in (whole, streamed):
        assert generation.seed == 2**64 - 1
        assert generation.log_probs == (-0.5, -2.0, -9.0)
        assert generation.top_log_probs == (
            ((5, -0.5), (1, -1.5)),
            ((6, -0.25), (5, -2.0)),
            ((2, -0.125), (3, -4.0)),
        )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("error_class", [PromptTooLongError, ServerBusyError, InvalidRequestError])
def test_errors_keep_their_class(streaming: bool, error_class: type[DraftproofError]) -> None:
    def refuse(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        long = "x" * 300
        wire = error_class(f"it does not fit: n={long}", "cut").to_wire()
        raise Refused(f"in ensemble 'generate', {wire}")
        yield {}

    with StandInServer(refuse) as server, connect(server) as client:
        ask = client.stream if streaming else client.generate
        with pytest.raises(error_class, match=r"it does not fit: n=x{300}; cut") as caught:
            list(ask(CompletionRequest("x")))  # type: ignore[arg-type]
    assert type(caught.value) is error_class


def test_an_error_in_mid_stream_is_raised_after_the_chunks_before_it() -> None:
    def fail_late(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        yield response("a", [5], 1)
        raise Refused(EngineFailedError("the step failed").to_wire())

    with StandInServer(fail_late) as server, connect(server) as client:
        stream = client.stream(CompletionRequest("x"))
        assert next(stream).text == "a"
        with pytest.raises(EngineFailedError, match="the step failed"):
            next(stream)


def test_a_model_that_is_not_served_is_the_callers_mistake() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        with pytest.raises(InvalidRequestError, match="unknown model"):
            client.generate(CompletionRequest("x"), "generate_all")
        with pytest.raises(InvalidRequestError, match="unknown model"):
            client.model_parameters("generate_all")


def test_no_server_is_a_typed_error_and_not_ready() -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    with Client.connect(url, Timeouts(connect_s=1.0, total_s=5.0)) as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnavailableError, match="no server answers"):
            client.generate(CompletionRequest("x"))
        with pytest.raises(ServerUnavailableError, match="no server answers"):
            client.server_version()


def test_what_the_server_says_of_itself() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        assert client.is_ready()
        assert client.server_version() == "2.51.0"
        assert client.model_parameters("generate")["engine_dir"] == "/engines/target"


@pytest.mark.parametrize("limits", [{"read_s": 0.2}, {"total_s": 2.0}])
def test_silence_ends_in_a_timeout(limits: dict[str, float]) -> None:
    with StandInServer(hang_after_one) as server, connect(server, **limits) as client:
        stream = client.stream(CompletionRequest("x"))
        assert next(stream).text == "a"
        with pytest.raises(RequestTimeoutError):
            next(stream)


def test_without_a_limit_of_ones_own_an_answer_takes_as_long_as_its_tokens() -> None:
    assert Timeouts().total_us == 0  # the server's word for no limit
    message = infer_message(CompletionRequest("x"), "generate", Timeouts(), streaming=False)
    assert message.parameters["timeout"].int64_param == 0
    message = infer_message(CompletionRequest("x"), "generate", Timeouts(total_s=2.5), streaming=False)
    assert message.parameters["timeout"].int64_param == 2_500_000


@pytest.mark.parametrize("streaming", [True, False])
def test_a_machine_that_is_gone_ends_an_answer_without_a_limit(
    monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """A cable is pulled: nobody closes the connection, and no response comes any more."""
    quick = [(name, min(value, 300)) for name, value in client_module.NOTICES_DEATH]
    monkeypatch.setattr(client_module, "NOTICES_DEATH", quick)
    with (
        StandInServer(hang_after_one) as server,
        socket.create_server(("127.0.0.1", 0)) as listening,
        Client.connect(f"grpc://127.0.0.1:{listening.getsockname()[1]}") as client,
    ):
        is_gone, may_end = threading.Event(), threading.Event()
        relayed = listening, address_of(server.grpc_url), is_gone, may_end
        threading.Thread(target=_relay, args=relayed, daemon=True).start()
        if streaming:
            stream = client.stream(CompletionRequest("x"))
            assert next(stream).text == "a"
        threading.Timer(0.5, is_gone.set).start()
        with pytest.raises(ServerUnavailableError):
            next(stream) if streaming else client.generate(CompletionRequest("x"))
        may_end.set()


def _relay(
    listening: socket.socket, address: str, is_gone: threading.Event, may_end: threading.Event
) -> None:
    """Pass one connection on until ``is_gone``, and then keep it open."""
    host, port = address.split(":")
    client, server = listening.accept()[0], socket.create_connection((host, int(port)))
    with client, server:
        while not is_gone.is_set():
            for ready in select.select((client, server), (), (), 0.02)[0]:
                (server if ready is client else client).sendall(ready.recv(1 << 16))
        may_end.wait()


def test_the_first_response_may_take_as_long_as_the_request() -> None:
    """The server reads the whole prompt before it, minutes for a long one."""

    def slow_to_begin(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        threading.Event().wait(0.6)
        yield response("a", [5], 1, finish="length")

    with StandInServer(slow_to_begin) as server, connect(server, read_s=0.2) as client:
        assert client.stream(CompletionRequest("x")).result().text == "a"


@pytest.mark.parametrize(
    "leave", [lambda stream: stream.close(), lambda stream: None], ids=["close", "forget"]
)
def test_leaving_a_stream_cancels_the_request(leave: Callable[[GenerationStream], None]) -> None:
    with StandInServer(hang_after_one) as server, connect(server) as client:
        stream = client.stream(CompletionRequest("x"))
        assert next(stream).text == "a"
        leave(stream)
        del stream
        assert server.was_cancelled.wait(120.0)


def test_two_streams_of_one_client_do_not_mix() -> None:
    with StandInServer(two_rounds) as server, connect(server) as client:
        first, second = client.stream(CompletionRequest("x")), client.stream(CompletionRequest("y"))
        assert [next(first).text, next(second).text, next(first).text] == ["a ü", "a ü", " b"]
        assert second.result().text == first.result().text == "a ü b"


@pytest.mark.parametrize(
    "bad",
    [
        CompletionRequest("x", temperature=float("nan")),
        CompletionRequest("x", top_p=float("inf")),
        CompletionRequest("x", seed=-1),
        CompletionRequest("x", seed=2**64),
        CompletionRequest("x", max_tokens=2**31),
        CompletionRequest("lone \ud800 surrogate"),
        CompletionRequest("x", stop_words=("\udfff",)),
        CompletionRequest("x", bad_words=("\udfff",)),
        CompletionRequest("x", frequency_penalty=float("nan")),
        CompletionRequest("x", min_tokens=2**31),
        CompletionRequest("x", logit_bias=((1, float("inf")),)),
        CompletionRequest("x", logit_bias=((2**31, 1.0),)),
        CompletionRequest("x", num_log_probs=2**31),
        CompletionRequest(prompt_ids=(1.5,)),  # type: ignore[arg-type]
        CompletionRequest(prompt_ids=(True,)),
        CompletionRequest(prompt_ids=np.array([1.0])),  # type: ignore[arg-type]
        CompletionRequest(prompt_ids=np.array([True])),  # type: ignore[arg-type]
        CompletionRequest("x", max_tokens="8"),  # type: ignore[arg-type]
    ],
    ids=lambda bad: repr(bad)[18:60],
)
def test_what_the_wire_cannot_carry_is_refused_before_it_is_sent(bad: CompletionRequest) -> None:
    with (
        StandInServer(two_rounds) as server,
        connect(server) as client,
        pytest.raises(InvalidRequestError, match="cannot be sent"),
    ):
        client.generate(bad)
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        *("", "grpc://", "ftp://127.0.0.1:80", "grpc://127.0.0.1"),
        *("grpc://h:99999", "grpc://h:80/v2", "grpc://:1"),
    ],
)
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="address is invalid"):
        Client.connect(url)
    assert address_of("127.0.0.1:8001") == address_of("grpc://127.0.0.1:8001") == "127.0.0.1:8001"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_without_meaning_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="read_s"):
        Timeouts(read_s=value)
