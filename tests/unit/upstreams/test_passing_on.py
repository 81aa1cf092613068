"""Tests of the bytes that clients get, and of the server that they get them from."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.canary.controller.orders import sole_controller
from pipelines.canary.run_files import state_file
from pipelines.upstreams.request import RESPONSES
from tests.support.stand_in_openai import Faults, StandIn, stand_in_openai
from tests.unit.upstreams.running import Running, figures, running

_ARMS = {
    "format": 2,
    "generation": 1,
    "canary_id": "c1",
    "salt": "salt",
    "stable": "old",
    "candidate": "new",
    "candidate_weight": 0.5,
    "shadow": None,
    "replays_match": "stable",
    "bands": {"medium_from": 4, "high_from": 8},
    "lease_until_s": 4e9,
    "slow_after_s": 0.5,
}


@dataclass
class Pair:
    """A service whose candidate gets half of the requests, and its two servers."""

    service: Running
    old: StandIn
    new: StandIn


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Be the controller of a rollout: write its table of arms, and hold its lock."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "service").mkdir()
    (folder / "service" / "arms.json").write_text(json.dumps(_ARMS))
    with (
        sole_controller(state_file(folder / "service")),
        stand_in_openai() as old,
        stand_in_openai() as new,
        running(folder, {"url": old.url}, {"url": new.url}) as service,
    ):
        yield Pair(service, old, new)


@pytest.fixture
def pair(serving: Pair) -> Iterator[Pair]:
    """The service, whose servers have no faults before and after the test."""
    yield serving
    serving.old.faults = serving.new.faults = Faults()


def without_ids(content: bytes) -> bytes:
    """Leave out the ids of responses, which are new each time."""
    return re.sub(rb"(resp|msg)_\d+", rb"\1", content)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_bytes_of_a_server_are_passed_on(path: str, stream: bool, pair: Pair) -> None:
    body: dict[str, Any] = {"model": "stand-in", "max_tokens": 5, "temperature": 0, "stream": stream}
    if "responses" in path:
        body |= {"input": [{"role": "user", "content": "hello"}], "max_output_tokens": 5}
    elif "chat" in path:
        body["messages"] = [{"role": "user", "content": "hello"}]
    else:
        body["prompt"] = "hello"
    old, url = pair.old, pair.service.url
    expected = httpx.post(f"{old.url}{path}", json=body, timeout=120, trust_env=False)
    headers = pair.service.choosing("stable")
    answer = httpx.post(f"{url}{path}", json=body, headers=headers, timeout=120, trust_env=False)
    assert (answer.status_code, without_ids(answer.content)) == (200, without_ids(expected.content))
    assert answer.headers["content-type"] == expected.headers["content-type"]
    assert answer.headers["x-draftproof-arm"] == "stable"
    assert old.requests[-1] == old.requests[-2]


def test_models_are_those_of_the_server_in_service(pair: Pair) -> None:
    models = httpx.get(f"{pair.service.url}/v1/models", trust_env=False).json()
    assert [each["id"] for each in models["data"]] == ["stand-in"]
    unknown, blocks = (
        httpx.post(f"{pair.service.url}/v1/{path}", json={}, trust_env=False)
        for path in ("embeddings", "messages")
    )
    assert (unknown.status_code, blocks.json()["type"]) == (404, "error")
    assert "is not passed on" in unknown.json()["error"]["what"]
    assert unknown.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "kept", [{"previous_response_id": "resp_1"}, {"conversation": "c"}, {"background": True}]
)
def test_a_response_that_needs_what_one_server_keeps_is_refused(kept: dict[str, Any], pair: Pair) -> None:
    before = len(pair.old.requests) + len(pair.new.requests)
    answer = pair.service.ask("hello", RESPONSES, **kept)
    assert answer.status_code == 400 and next(iter(kept)) in answer.json()["error"]["message"]
    assert len(pair.old.requests) + len(pair.new.requests) == before


def test_operators_see_requests_faults_times_and_weights(pair: Pair) -> None:
    before = figures(pair.service)
    pair.new.faults = Faults(fails=1.0)
    assert (
        pair.service.ask("metrics", stream=True, headers=pair.service.choosing("candidate")).status_code
        == 200
    )
    assert pair.service.ask("x", path="/v1/unknown").status_code == 404
    after = figures(pair.service)
    added = {name: value - before.get(name, 0) for name, value in after.items()}
    assert added['requests_total{arm="stable",outcome="answered"}'] == 1
    assert added['fallbacks_total{arm="candidate"}'] == 1
    assert added['faults_total{arm="candidate",fault="HTTP 500"}'] == 1
    assert added['ttft_seconds_count{arm="stable"}'] == 1
    assert added['e2e_latency_seconds_count{arm="stable"}'] == 1
    assert added['draftproof_front_door_responses_total{path="other",status="404"}'] == 1
    assert after['weight{arm="candidate",server="new"}'] == 0.5


def test_what_a_server_refuses_is_passed_on(pair: Pair) -> None:
    service = pair.service
    for prompt in ("hello", "hello " * 100_000):  # a long refusal arrives in pieces
        answer = service.ask(prompt, max_tokens=0)
        assert answer.status_code == 400
        assert answer.json()["error"] == {"message": "max_tokens must be at least 1", "input": prompt}
    assert httpx.post(f"{service.url}/v1/completions", content=b"[", trust_env=False).status_code == 400
    assert service.ask("x", headers=service.choosing("nobody")).status_code == 400
    pair.old.faults = pair.new.faults = Faults(limits=1.0)
    limited = service.ask("hello")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "0")
    pair.old.faults = pair.new.faults = Faults(fails=1.0)
    assert service.ask("hello").json() == {"error": {"message": "broken"}}
    pair.old.faults = pair.new.faults = Faults(garbles=1.0)
    garbled = service.ask("hello")
    assert (garbled.status_code, garbled.json()["error"]["code"]) == (502, "engine_failed")


def test_a_stream_ends_for_the_client_where_its_server_broke_it(pair: Pair) -> None:
    pair.old.faults = Faults(cuts=1.0)
    body = {"model": "stand-in", "prompt": "hello", "temperature": 0, "stream": True}
    for url in (pair.old.url, pair.service.url):
        seen = b""
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream(
                "POST",
                f"{url}/v1/completions",
                json=body,
                headers=pair.service.choosing("stable"),
                trust_env=False,
            ) as answer,
        ):
            for data in answer.iter_raw():
                seen += data
        assert seen.count(b"data: ") == 4


@pytest.mark.parametrize(
    ("faults", "stream"),
    [
        (Faults(fails=1.0), False),
        (Faults(limits=1.0), True),
        (Faults(garbles=1.0), False),
        (Faults(hangs=1.0), True),
    ],
)
def test_the_stable_server_answers_what_the_candidate_does_not(
    faults: Faults, stream: bool, pair: Pair
) -> None:
    pair.new.faults = faults
    for number in range(6):
        answer = pair.service.ask(f"{number}", stream=stream, headers=pair.service.choosing("candidate"))
        assert (answer.status_code, answer.headers["x-draftproof-arm"]) == (200, "stable")


@pytest.mark.parametrize("headers", [{}, {"draftproof-key": "a guess"}])
def test_a_client_does_not_choose_its_server(headers: dict[str, str], pair: Pair) -> None:
    refused = pair.service.ask("hello", headers={"X-Draftproof-Arm": "candidate", **headers})
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "arm")


def wait_for_the_candidate(pair: Pair) -> None:
    """Wait until its breaker is closed, and one more failure does not open it."""
    ends_at_s, headers, num_answers = time.monotonic() + 120, pair.service.choosing("candidate"), 0
    while num_answers < 4:
        assert time.monotonic() < ends_at_s
        if pair.service.ask("x", headers=headers).headers["x-draftproof-arm"] == "candidate":
            num_answers += 1
        else:
            time.sleep(0.2)


_SEARCH = {"tools": [{"type": "web_search"}], "store": False}


@pytest.mark.parametrize("faults", [Faults(fails=1.0), Faults(garbles=1.0), Faults(hangs=1.0, hang_s=2.0)])
@pytest.mark.parametrize(
    ("fields", "num_asked"),
    [({"store": False}, 1), ({}, 0), ({"store": True}, 0), (_SEARCH, 0)],
    ids=["kept nowhere", "kept", "kept by name", "hosted tool"],
)
def test_a_request_that_does_something_is_not_sent_to_a_second_server(
    faults: Faults, fields: dict[str, Any], num_asked: int, pair: Pair
) -> None:
    wait_for_the_candidate(pair)
    pair.new.faults = faults
    before, options = len(pair.old.requests), {"stream": bool(faults.hangs), **fields}
    answer = pair.service.ask("once", RESPONSES, headers=pair.service.choosing("candidate"), **options)
    assert len(pair.old.requests) - before == num_asked
    assert (answer.status_code == 200) == bool(num_asked)
    assert num_asked or answer.status_code in (500, 502)


def test_a_request_that_does_something_is_sent_on_where_nothing_has_begun(pair: Pair) -> None:
    wait_for_the_candidate(pair)
    pair.new.faults = Faults(limits=1.0)
    answer = pair.service.ask("elsewhere", RESPONSES, headers=pair.service.choosing("candidate"))
    assert (answer.status_code, answer.headers["x-draftproof-arm"]) == (200, "stable")


def test_what_a_server_says_of_itself_stays_with_it(pair: Pair) -> None:
    said = pair.old.says = {
        **{"Access-Control-Allow-Origin": "*", "Vary": "Origin", "Set-Cookie": "a=b", "Alt-Svc": 'h3=":443"'},
        **{"Strict-Transport-Security": "max-age=1", "OpenAI-Organization": "ours", "Connection": "X-Hop"},
        **{"X-Hop": "1", "OpenAI-Project": "ours", "X-RateLimit-Remaining-Requests": "7"},
    }
    answer = pair.service.ask("hello", headers=pair.service.choosing("stable"))
    pair.old.says = {}
    got = {name.lower() for name in answer.headers}
    assert got & {name.lower() for name in said} == {"x-ratelimit-remaining-requests"}


@pytest.mark.parametrize("begin", [b"[", b'{"prompt": ['])
def test_a_body_that_takes_long_to_read_is_refused(begin: bytes, pair: Pair) -> None:
    content = begin + b"{}," * 600_000
    refused = httpx.post(f"{pair.service.url}/v1/completions", content=content, timeout=120, trust_env=False)
    assert refused.status_code == 400
    assert "the body has too many values" in refused.json()["error"]["what"]


def shares(service: Running, number: int, session: str = "") -> Counter[str]:
    headers = {"X-Session-Id": session} if session else {}
    answers = [service.ask(f"prompt {each}", headers=headers) for each in range(number)]
    assert {answer.status_code for answer in answers} == {200}
    return Counter(answer.headers["x-draftproof-arm"] for answer in answers)


def test_weights_and_sessions_choose_the_server(pair: Pair) -> None:
    wait_for_the_candidate(pair)
    by_arm = shares(pair.service, 40)
    assert min(by_arm["stable"], by_arm["candidate"]) > 5
    for session in ("a", "b", "c", "d"):
        assert len(shares(pair.service, 5, session)) == 1


def test_keys_go_to_their_own_server_and_nowhere_else(tmp_path: Path) -> None:
    """The candidate cannot be reached, and the stable server requires a key and quotes a wrong one."""
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "arms.json").write_text(json.dumps(_ARMS))
    (tmp_path / "key").write_text("sk-very-secret\n")
    with (
        sole_controller(state_file(tmp_path / "service")),
        stand_in_openai(key="sk-very-secret") as server,
        running(
            tmp_path,
            {"url": server.url, "key_file": "key", "model": "other-name"},
            {"url": "http://127.0.0.1:1"},
        ) as service,
    ):
        answer = service.ask(
            "hello", headers={"Authorization": "Bearer of-the-client", **service.choosing("candidate")}
        )
        assert (answer.status_code, answer.headers["x-draftproof-arm"]) == (200, "stable")
        assert server.headers[-1]["Authorization"] == "Bearer sk-very-secret"
        assert server.requests[-1]["model"] == "other-name"
        server.key = "sk-another"
        refused = service.ask("hello")
        assert (refused.status_code, "secret" in refused.text) == (502, False)
        _, said = service.stop()
        assert "secret" not in said
    written = [path for path in (tmp_path / "service").rglob("*") if path.is_file()]
    assert len(written) > 1
    assert not [path for path in written if b"secret" in path.read_bytes()]
