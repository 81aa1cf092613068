"""The client against a stand-in server on real sockets, over both transports."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.client.__main__ import main
from pipelines.client.at_once import Job, Workers
from pipelines.client.client import split_url
from pipelines.client.generation import Chunk, Generation, SpeculationCounts, chunk_from_outputs, join_chunks
from pipelines.client.refusals import refusal
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from tests.stand_in_server import Refused, StandInServer, response

FIRST_ROUND = {
    "accepted_mask": [True, True, False],
    "num_rounds": 1,
    "total_draft_tokens": 4,
    "total_accepted_draft_tokens": 2,
    "accepted_per_position": [1, 1, 0, 0],
}
SECOND_ROUND = {
    "accepted_mask": [False],
    "num_rounds": 2,
    "total_draft_tokens": 8,
    "total_accepted_draft_tokens": 2,
    "accepted_per_position": [1, 1, 0, 0],
}


def two_rounds(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    """Four tokens in two rounds; one response if the request is not streamed."""
    with_counts = model == "generate"
    if inputs["stream"]:
        yield response("a ü", [5, 6, 7], 3, **(FIRST_ROUND if with_counts else {}))
        yield response(" b", [8], 4, "length", **(SECOND_ROUND if with_counts else {}))
    else:
        counts = {**SECOND_ROUND, "accepted_mask": [True, True, False, False]}
        yield response("a ü b", [5, 6, 7, 8], 4, "length", **(counts if with_counts else {}))


def hang_after_one(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    yield response("a", [5], 1)
    yield {"wait": True}


@pytest.fixture(params=["grpc", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connect(server: StandInServer, transport: str, **timeouts: float) -> Client:
    url = server.grpc_url if transport == "grpc" else server.http_url
    return Client.connect(url, Timeouts(**{"connect_s": 2.0, "read_s": 5.0, "total_s": 20.0, **timeouts}))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_streamed_and_whole_answers_are_the_same(transport: str) -> None:
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
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
    assert whole.ttft_s is None
    assert streamed.ttft_s is not None
    assert 0 < streamed.ttft_s <= streamed.e2e_latency_s


def test_text_keeps_every_character_that_some_take_for_the_end_of_a_line(transport: str) -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\r\ng\x1ch\U0001f600"

    def special(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        yield response(text, [5], 1, "length")

    with StandInServer(special) as server, connect(server, transport) as client:
        assert client.stream(CompletionRequest(text)).result().text == text
        assert client.generate(CompletionRequest(text)).text == text
    assert server.requests[0][1]["text_input"] == text


def test_the_target_alone_reports_no_speculation(transport: str) -> None:
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
        generation = client.generate(CompletionRequest("x"), "generate_target")
    assert generation.output_ids == (5, 6, 7, 8)
    assert generation.accepted_mask == ()
    assert generation.acceptance_rate is None
    assert generation.mean_acceptance_length is None


def test_parameters_that_are_none_are_not_sent(transport: str) -> None:
    full = CompletionRequest("ä", 7, 0.5, 3, 0.75, 2**64 - 1, ("stop", "élan"), 9, 0)
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
        client.generate(CompletionRequest("x"))
        client.stream(full).result()
    (_, least), (_, most) = server.requests
    for inputs in (least, most):
        assert inputs.pop("timeout") == 20_000_000  # microseconds: the server ends the request, too
    assert set(least) == {"text_input", "max_tokens", "stream", "temperature", "top_k", "top_p"}
    assert most == {
        "text_input": "ä",
        "max_tokens": 7,
        "stream": True,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
        "seed": 2**64 - 1,
        "stop_words": ["stop", "élan"],
        "end_id": 9,
        "num_draft_tokens": 0,
    }


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("error_class", [PromptTooLongError, ServerBusyError, InvalidRequestError])
def test_errors_keep_their_class(transport: str, streaming: bool, error_class: type[DraftproofError]) -> None:
    def refuse(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        long = "x" * 300
        wire = error_class("it does not fit", values=f"n={long}", limit="8", remedy="cut").to_wire()
        raise Refused(f"in ensemble 'generate', {wire}")
        yield {}

    with StandInServer(refuse) as server, connect(server, transport) as client:
        ask = client.stream if streaming else client.generate
        with pytest.raises(error_class, match=r"it does not fit; n=x{300}; 8; cut") as caught:
            list(ask(CompletionRequest("x")))  # type: ignore[arg-type]
    assert type(caught.value) is error_class


def test_an_error_in_mid_stream_is_raised_after_the_chunks_before_it(transport: str) -> None:
    def fail_late(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        yield response("a", [5], 1)
        raise Refused(EngineFailedError("the step failed").to_wire())

    with StandInServer(fail_late) as server, connect(server, transport) as client:
        stream = client.stream(CompletionRequest("x"))
        assert next(stream).text == "a"
        with pytest.raises(EngineFailedError, match="the step failed"):
            next(stream)


def test_a_model_that_is_not_served_is_the_callers_mistake(transport: str) -> None:
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
        with pytest.raises(InvalidRequestError, match="unknown model"):
            client.generate(CompletionRequest("x"), "generate_all")
        with pytest.raises(InvalidRequestError, match="unknown model"):
            client.model_parameters("generate_all")


def test_no_server_is_a_typed_error_and_not_ready(transport: str) -> None:
    url = f"{transport}://127.0.0.1:{free_port()}"
    with Client.connect(url, Timeouts(connect_s=1.0, total_s=5.0)) as client:
        assert not client.is_ready()
        with pytest.raises(ServerUnavailableError, match="no server answers"):
            client.generate(CompletionRequest("x"))
        with pytest.raises(ServerUnavailableError, match="no server answers"):
            client.server_version()


def test_what_the_server_says_of_itself(transport: str) -> None:
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
        assert client.is_ready()
        assert client.server_version() == "2.51.0"
        assert client.model_parameters("generate")["engine_dir"] == "/engines/target"


@pytest.mark.parametrize("limits", [{"read_s": 0.2}, {"total_s": 0.2}])
def test_silence_ends_in_a_timeout(transport: str, limits: dict[str, float]) -> None:
    def silent(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        yield response("a", [5], 1)
        threading.Event().wait(1.0)

    with StandInServer(silent) as server, connect(server, transport, **limits) as client:
        stream = client.stream(CompletionRequest("x"))
        assert next(stream).text == "a"
        with pytest.raises(RequestTimeoutError):
            next(stream)


def test_closing_a_stream_cancels_the_request(transport: str) -> None:
    with StandInServer(hang_after_one) as server, connect(server, transport) as client:
        with client.stream(CompletionRequest("x")) as stream:
            assert next(stream).text == "a"
        assert server.was_cancelled.wait(5.0)


def test_forgetting_a_stream_cancels_the_request(transport: str) -> None:
    with StandInServer(hang_after_one) as server, connect(server, transport) as client:
        stream = client.stream(CompletionRequest("x"))
        next(stream)
        del stream
        assert server.was_cancelled.wait(5.0)


def test_two_streams_of_one_client_do_not_mix(transport: str) -> None:
    with StandInServer(two_rounds) as server, connect(server, transport) as client:
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
    ],
    ids=lambda bad: repr(bad)[18:60],
)
def test_what_the_wire_cannot_carry_is_refused_before_it_is_sent(
    transport: str, bad: CompletionRequest
) -> None:
    with (
        StandInServer(two_rounds) as server,
        connect(server, transport) as client,
        pytest.raises(InvalidRequestError, match="cannot be sent"),
    ):
        client.generate(bad)
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "grpc://",
        "ftp://127.0.0.1:80",
        "http://127.0.0.1",
        "grpc://h:99999",
        "http://h:80/v2",
        "grpc://:1",
    ],
)
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="address cannot be used"):
        Client.connect(url)


def test_an_address_without_scheme_means_grpc() -> None:
    assert split_url("127.0.0.1:8001") == ("grpc", "127.0.0.1:8001")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_without_meaning_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="read_s"):
        Timeouts(read_s=value)


def test_figures_follow_their_formulas() -> None:
    generation = Generation("", (1, 2, 3, 4, 5), (), "length", 4, 12, 3, (2, 1, 0), 2.0, 4.0)
    assert generation.itl_s == 0.5  # 2 s for the 4 tokens after the first
    assert generation.acceptance_rate == 0.25
    assert generation.mean_acceptance_length == 1.75
    assert Generation("", (1,), (), "length", 0, 0, 0, (), 2.0, 4.0).itl_s is None


def chunk(ids: tuple[int, ...], so_far: int, finish: str = "", at: float = 0.0) -> Chunk:
    return Chunk("", ids, (), finish, at, so_far)


def test_time_to_first_token_waits_for_a_token_not_for_a_chunk() -> None:
    chunks = [chunk((), 0, at=11.0), chunk((4,), 1, at=12.0), chunk((5, 6), 3, "stop", at=15.0)]
    generation = join_chunks(chunks, 10.0, streamed=True)
    assert (generation.ttft_s, generation.e2e_latency_s, generation.itl_s) == (2.0, 5.0, 1.5)


def test_a_lost_chunk_is_noticed() -> None:
    with pytest.raises(InternalError, match="sequence_length=3, 2 tokens"):
        join_chunks([chunk((4, 5), 3, "stop")], 0.0, streamed=True)
    with pytest.raises(InternalError, match="no finish_reason"):
        join_chunks([chunk((4,), 1)], 0.0, streamed=True)
    with pytest.raises(InternalError, match="no finish_reason"):
        join_chunks([], 0.0, streamed=True)


def test_a_response_that_contradicts_itself_is_noticed() -> None:
    outputs = {"text_output": ["a"], "output_ids": [1, 2], "sequence_length": [2], "finish_reason": [""]}
    assert chunk_from_outputs(outputs, 0.0).counts is None
    counts = {name: value if isinstance(value, list) else [value] for name, value in FIRST_ROUND.items()}
    with pytest.raises(InternalError, match="3 marks for 2 tokens"):
        chunk_from_outputs({**outputs, **counts}, 0.0)
    with pytest.raises(InternalError, match="finish_reason"):
        chunk_from_outputs({name: outputs[name] for name in outputs if name != "finish_reason"}, 0.0)
    full = chunk_from_outputs({**outputs, **counts, "accepted_mask": [True, False]}, 0.0)
    assert full.counts == SpeculationCounts(1, 4, 2, (1, 1, 0, 0))


def test_messages_without_a_class_are_sorted_by_triton_words() -> None:
    assert isinstance(refusal("unexpected inference input 'x' for model 'generate'"), InvalidRequestError)
    assert isinstance(refusal("Request for unknown model: 'x' is not found"), InvalidRequestError)
    assert isinstance(refusal("model 'generate' is not ready"), ServerUnavailableError)
    assert isinstance(refusal("Stub process is not healthy"), EngineFailedError)
    assert isinstance(refusal("whatever", is_client_fault=True), InvalidRequestError)


def test_workers_answer_all_jobs_in_order_and_never_more_at_once() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def ask(request: CompletionRequest, model: str) -> Generation:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1
        if request.max_tokens == 3:
            raise ServerBusyError("full")
        return Generation(request.prompt, (request.max_tokens,), (), "stop", 0, 0, 0, (), None, 1.0)

    seen: list[object] = []
    jobs = [Job(CompletionRequest("p", max_tokens=index), "generate") for index in range(12)]
    answers = Workers([ask] * 4).run(jobs, 2, seen.append)
    assert most == 2
    assert len(seen) == 12
    assert isinstance(answers[3], ServerBusyError)
    others = [answer.output_ids for answer in answers if isinstance(answer, Generation)]
    assert others == [(index,) for index in range(12) if index != 3]


def test_a_defect_in_a_worker_is_raised_not_lost() -> None:
    def broken(request: CompletionRequest, model: str) -> Generation:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Workers([broken] * 2).run([Job(CompletionRequest("p"), "generate")] * 5, 2)


def test_the_command_line_prints_text_or_json(transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    with StandInServer(two_rounds) as server:
        url = server.grpc_url if transport == "grpc" else server.http_url
        assert main(["--url", url, "x"]) == 0
        assert capsys.readouterr().out == "a ü b\n"
        assert main(["--url", url, "--stream", "x"]) == 0
        assert capsys.readouterr().out == "a ü b\n"
        assert main(["--url", url, "--stream", "--json", "--stop-word", "q", "x"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["output_ids"] == [5, 6, 7, 8]
    assert document["acceptance_rate"] == 0.25
    assert server.requests[-1][1]["stop_words"] == ["q"]


def test_the_command_line_tells_usage_from_failure(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--url", "ftp://x:1", "x"],
        ["--timeout", "0", "x"],
        ["--max-tokens", "many", "x"],
        [],
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert main(["--url", f"grpc://127.0.0.1:{free_port()}", "x"]) == 1
    assert "no server answers" in capsys.readouterr().err
