"""Tests of responses that are kept, of their keys, and of the list of models that Codex reads."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pipelines.errors import ResponseNotFoundError
from pipelines.front_door.access.key_file import add_key
from pipelines.front_door.endpoints import kept_responses, responses
from pipelines.front_door.endpoints.kept_responses import KEPT, KEPT_S, KeptResponses
from pipelines.front_door.messages.call_styles.json_calls import HERMES
from tests.unit.front_door.messages.cases import ARGUMENTS, TOKENIZER, WEATHER, written
from tests.unit.front_door.scripted_door import SIZE, Door, open_door

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER.parameters}
CALL = written(HERMES, ("get_weather", ARGUMENTS))
ASKED: dict[str, Any] = {"model": "m", "input": "hot?", "instructions": "Be brief."}

# Open Responses, schema/components/schemas/ResponseResource.json at 3452c012: "required".
REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("temperature", "reasoning", "user", "usage", "max_output_tokens", "max_tool_calls", "store"),
    *("background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
}


async def respond(door: Door, **changes: Any) -> Any:
    status, document = await door.post({**ASKED, **changes}, PATH)
    assert status == 200, document
    return document


async def streamed(door: Door, **changes: Any) -> list[Any]:
    """Return the events of a response."""
    reply = await door.client.post(PATH, json={**ASKED, **changes, "stream": True})
    lines = (await reply.text()).split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


async def get(door: Door, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    reply = await door.client.request(method, path, headers=headers)
    return reply.status, await reply.json()


def prompt_of(door: Door) -> str:
    return TOKENIZER.vocabulary.join(door.router.asked[-1].prompt_ids).decode()


async def test_responses_and_events_have_every_key_of_the_published_schemas() -> None:
    told = {"safety_identifier": "a", "prompt_cache_key": "b", "max_tool_calls": 3, "service_tier": "flex"}
    asked = {
        "reasoning": {"effort": "low"},
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": True},
    }
    async with open_door() as door:
        door.router.answer = f"<think>\nSunny?\n</think>\n\nI ask.{CALL}"
        whole = await respond(door, **asked, **told)
        assert {name: whole[name] for name in told} == {**told, "service_tier": "default"}
        assert whole["reasoning"] == {"effort": "low", "summary": None}
        events = await streamed(door, **asked)
    documents = [whole, *(event["response"] for event in events if "response" in event)]
    assert [each["status"] for each in documents] == ["completed", *["in_progress"] * 2, "completed"]
    for document in documents:
        assert REQUIRED - set(document) == set()
        Response.model_validate(document, strict=True)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    for event in events:
        TypeAdapter[Any](ResponseStreamEvent).validate_python(event, strict=True)


async def test_a_request_continues_a_kept_response_as_if_it_had_the_whole_conversation() -> None:
    async with open_door() as door:
        door.router.answer = f"I ask.{CALL}"
        first = await respond(door, tools=[TOOL])
        assert (first["store"], first["previous_response_id"]) == (True, None)
        door.router.answer = "Yes."
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "31"}
        second = await respond(door, input=[result], tools=[TOOL], previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        continued = {"input": "sure?", "instructions": None, "previous_response_id": second["id"]}
        await respond(door, **continued)
        found = prompt_of(door)
        user, last = ({"role": "user", "content": text} for text in ("hot?", "sure?"))
        whole = [user, *first["output"], result, *second["output"], last]
        await respond(door, input=whole, instructions=None)
        assert found == prompt_of(door) and "Be brief." not in found and "31" in found
        response = (await streamed(door, **continued))[-1]["response"]
        assert await get(door, f"{PATH}/{response['id']}") == (200, response)


async def test_a_kept_response_is_read_and_forgotten() -> None:
    async with open_door() as door:
        first = await respond(door)
        second = await respond(door, input="sure?", previous_response_id=first["id"])
        path = f"{PATH}/{second['id']}"
        assert await get(door, path) == (200, second)
        assert (await get(door, f"{path}?stream=true"))[0] == 400
        deleted = {"id": second["id"], "object": "response", "deleted": True}
        assert await get(door, path, "DELETE") == (200, deleted)
        found = [await get(door, path), await get(door, path, "DELETE")]
        found += [await door.post({**ASKED, "previous_response_id": second["id"]}, PATH)]
        for status, document in found:
            assert (status, document["error"]["code"]) == (404, "previous_response_not_found")
            assert second["id"] in document["error"]["message"]
        assert found[-1][1]["error"]["param"] == "previous_response_id"
        unkept = await respond(door, store=False)
        assert unkept["store"] is False and (await get(door, f"{PATH}/{unkept['id']}"))[0] == 404


async def test_another_key_gets_the_same_answer_as_for_an_unknown_response(tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys.json", name, None, None) for name in ("alice", "bob")]
    mine, other = ({"Authorization": f"Bearer {key}"} for key in keys)
    async with open_door(keys=str(tmp_path / "keys.json")) as door:
        _, response = await door.post(ASKED, PATH, **mine)
        assert (await get(door, f"{PATH}/{response['id']}", **mine))[0] == 200
        unknown = "resp_" + "0" * len(response["id"].removeprefix("resp_"))
        for method in ("GET", "DELETE"):
            status, found = await get(door, f"{PATH}/{response['id']}", method, **other)
            _, expected = await get(door, f"{PATH}/{unknown}", method, **other)
            assert status == 404
            assert found == json.loads(json.dumps(expected).replace(unknown, response["id"]))
        asked = {**ASKED, "previous_response_id": response["id"]}
        assert (await door.post(asked, PATH, **other))[0] == 404
        assert (await door.post(asked, PATH, **mine))[0] == 200


def test_what_is_kept_has_a_limit_for_all_one_for_each_key_and_an_end() -> None:
    now_s = 0.0
    kept = KeptResponses(4000, lambda: now_s)  # 10 of these, and 2 of one key

    def put(owner: str, *names: str) -> None:
        for name in names:
            kept.keep(owner, {"id": name, "output": []}, b"[" + b" " * 360 + b"]")

    def known() -> dict[str, str]:
        found: dict[str, str] = {}
        for owner in owners:
            for name in "abcde":
                with suppress(ResponseNotFoundError):
                    assert kept.conversation(owner, name) == []
                    found[owner] = found.get(owner, "") + name
        return found

    owners = ["alice", "bob", "carol", "dan", "eve", "frank"]
    put("alice", "a", "b", "c")
    put("bob", "d", "e")
    assert known() == {"alice": "bc", "bob": "de"}
    now_s = KEPT_S - 1
    for owner in owners[2:]:
        put(owner, "a", "b")
    assert known() == {"bob": "de", **dict.fromkeys(owners[2:], "ab")}
    now_s = KEPT_S
    assert known() == dict.fromkeys(owners[2:], "ab")
    for owner in owners:
        put(owner, "h" * 1000)  # larger than all that a key may have
    assert (known(), kept._num_bytes.total()) == ({}, 0)


async def test_an_operator_may_keep_nothing() -> None:
    async with open_door(max_kept_bytes=0) as door:
        response = await respond(door, store=True)
        assert response["store"] is False
        status, found = await get(door, f"{PATH}/{response['id']}")
        assert status == 404 and "0 MiB" in found["error"]["message"]
        application: Any = door.client.server
        assert application.app[KEPT]._kept == {}
        continued = await door.post({**ASKED, "previous_response_id": response["id"]}, PATH)
        assert continued[0] == 404


async def test_a_kept_response_is_freed_without_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_responses, "KEPT_S", 0.05)
    monkeypatch.setattr(responses, "KEPT_S", 0.06)
    async with open_door() as door:
        await respond(door)
        application: Any = door.client.server
        kept = application.app[KEPT]._kept
        assert len(kept) == 1
        while kept:
            await asyncio.sleep(0.01)


async def test_codex_gets_the_models_in_its_own_shape() -> None:
    # What `ModelInfo` has no default for in Codex 0.171, and in versions before it.
    required: dict[str, type] = {"slug": str, "display_name": str, "supported_reasoning_levels": list}
    required |= {"shell_type": str, "visibility": str, "supported_in_api": bool, "priority": int}
    required |= {"base_instructions": str, "support_verbosity": bool, "supports_reasoning_summaries": bool}
    required |= {"truncation_policy": dict, "supports_parallel_tool_calls": bool}
    required |= {"experimental_supported_tools": list, "context_window": int}
    async with open_door() as door:
        _, found = await get(door, "/v1/models?client_version=0.171.0")
        _, usual = await get(door, "/v1/models")
    assert list(found) == ["models"] and len(found["models"]) == 1
    [model] = found["models"]
    assert {name for name, kind in required.items() if type(model.get(name)) is not kind} == set()
    assert (model["slug"], model["context_window"]) == (usual["data"][0]["id"], SIZE)
