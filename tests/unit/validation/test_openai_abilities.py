"""Tests of what is found out about an OpenAI-compatible server before it is judged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import EngineFailedError, VerificationError
from pipelines.validation.__main__ import main
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.openai.server.server import OpenAIServer
from pipelines.validation.openai.verify import compares_streams
from tests.support.scripted_http import scripted_http
from tests.support.stand_in_openai import Faults, stand_in_openai

SIZE = ("--num-prompts", "6", "--max-tokens", "8", "--num-at-once", "2")


def opened(url: str, model: str = "") -> OpenAIServer:
    return OpenAIServer(Endpoint.of(url, model, "", {}), 10.0)


def compared(control: Faults, candidate: Faults, folder: Path, capsys: Any) -> tuple[int, dict[str, Any]]:
    with stand_in_openai(control) as first, stand_in_openai(candidate) as second:
        servers = ("--against", second.url, "--control", first.url)
        code = main([*servers, *SIZE, "--html", str(folder / "page.html"), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("engine", ["vllm:", "llamacpp:", ""])
def test_draft_tokens_are_counted_under_the_name_of_any_engine(engine: str) -> None:
    counters = (
        f'{engine}spec_decode_num_draft_tokens_total{{slot="0"}} 40',
        f'{engine}spec_decode_num_draft_tokens_total{{slot="1"}} 2',
        f"{engine}spec_decode_num_accepted_tokens_total 7",
    )
    with stand_in_openai(metrics="\n".join(counters)) as server:
        found = opened(server.url)
        assert found.abilities.counts_drafts
        assert found.draft_tokens() == 42


def test_a_named_model_needs_no_list() -> None:
    """Such as that of ``transformers serve``, which fails where the hub's cache does not exist."""
    with stand_in_openai(lists_models=False) as server:
        assert opened(server.url, "stand-in").abilities.completions
        with pytest.raises(EngineFailedError):
            opened(server.url)


def test_a_probe_that_fails_is_tried_again_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answered one request in ten with HTTP 500 once ended the whole comparison."""
    model = (200, {}, b'{"data": [{"id": "m"}]}')
    broken = (500, {}, b'{"error": {"message": "CUDA error"}}')
    text = b'{"model": "m", "choices": [{"text": "a", "message": {"content": "a"}, "finish_reason": "stop"}]}'
    with scripted_http(model, broken, (200, {}, text)) as script:
        server = opened(script.url)
    assert server.abilities.chat
    (failed,) = (what for what in server.failures if "500" in what)
    assert server.failures[failed] == 1


@pytest.mark.parametrize("value", ["NaN", "+Inf", "many"])
def test_a_counter_that_is_no_number_tells_nothing(value: str) -> None:
    with stand_in_openai(metrics=f"spec_decode_num_draft_tokens_total {value}") as server:
        assert opened(server.url).draft_tokens() is None


@pytest.mark.parametrize("listed", [b"[" * 100_000, b"{", b"[]", b'{"data": [1]}', b'{"data": null}'])
def test_a_list_of_models_that_is_none_is_told(listed: bytes) -> None:
    with scripted_http((200, {}, listed)) as script, pytest.raises(VerificationError, match="lists none"):
        opened(script.url)


def test_streams_that_neither_server_ends_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report = compared(Faults(ends=1.0), Faults(ends=1.0), tmp_path, capsys)
    assert report["verdict"] != "fail"
    assert not [name for name in report["sections"][1]["figures"]["audits"] if "streamed" in name]
    notes = report["sections"][3]["figures"]["not_checked"]
    assert "streams: both servers end them without data: [DONE], so a cut one would look whole" in notes


def test_streams_that_only_the_candidate_does_not_end_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = compared(Faults(), Faults(ends=1.0), tmp_path, capsys)
    assert (code, report["verdict"]) == (1, "fail")
    found = report["sections"][0]["figures"]["differences"]
    assert found and all("streamed" in each["asked"] for each in found)


def test_streams_without_an_end_are_compared_with_a_control_that_has_no_streams() -> None:
    def able(*, streams: bool, ends_streams: bool) -> Any:
        return SimpleNamespace(streams=streams, ends_streams=ends_streams)

    without, open_ends = able(streams=False, ends_streams=False), able(streams=True, ends_streams=False)
    whole = able(streams=True, ends_streams=True)
    assert compares_streams(without, open_ends)
    assert compares_streams(whole, open_ends)
    assert compares_streams(open_ends, whole)
    assert not compares_streams(open_ends, open_ends)
    assert not compares_streams(whole, without)


def test_a_stream_that_breaks_does_not_count_as_one_without_an_end() -> None:
    with stand_in_openai(Faults(cuts=1.0)) as server:
        abilities = opened(server.url).abilities
    assert (abilities.streams, abilities.ends_streams) == (True, True)
