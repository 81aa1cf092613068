"""Tests with clients that nobody here wrote, in an environment of their own (``make test-clients``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from pipelines.deploy.server import Server
from tests.conftest import REPOSITORY_ROOT
from tests.integration.front_door.conftest import MODEL, url_of
from tests.integration.front_door.test_tools import CALM, MESSAGES, SCHEMA, TOOLS, Options, options

pytestmark = [pytest.mark.triton, pytest.mark.long]

__all__ = ["options"]  # a fixture

ENVIRONMENT = REPOSITORY_ROOT / ".venv-clients"
PROGRAMS = REPOSITORY_ROOT / "tests" / "clients"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the folder of the environment's programs."""
    if not (ENVIRONMENT / "bin" / "aiperf").exists():
        pytest.skip("the clients are not installed; make test-clients installs them")
    return ENVIRONMENT / "bin"


def run(command: list[Any], cwd: Path, **environment: str) -> str:
    """Run a program that may reach only this machine directly; return its output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def expected(api: openai.OpenAI) -> dict[str, str]:
    """Answers to the requests of the programs, by OpenAI's own client."""
    common: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 24}
    messages: Any = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Hello"}]
    chat = api.chat.completions.create(messages=messages, **common).choices[0].message.content
    assert chat
    return {"text": api.completions.create(prompt="def area(", **common).choices[0].text, "chat": chat}


def test_langchain(folder: Path, door: Server, expected: dict[str, str], tmp_path: Path) -> None:
    command = [folder / "python", PROGRAMS / "langchain_program.py", url_of(door), MODEL]
    found = json.loads(run(command, tmp_path))
    assert found["completion"] == found["completion_stream"] == found["completions"][0] == expected["text"]
    assert found["completions"][1] != expected["text"]
    assert found["chat"] == found["chat_stream"] == found["chat_async"] == expected["chat"]
    assert (found["chat_usage"], found["chat_reason"]) == (24, "length")
    assert found["refusal"] == "model_not_found"


def test_litellm(folder: Path, door: Server, expected: dict[str, str], tmp_path: Path) -> None:
    command = [folder / "python", PROGRAMS / "litellm_program.py", url_of(door), MODEL]
    found = json.loads(run(command, tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines()[-1])
    assert found["completion"] == found["completion_stream"] == expected["text"]
    assert found["chat"] == found["chat_stream"] == found["chat_as_vllm"] == expected["chat"]
    assert found["chat_usage"] == found["chat_stream_usage"] == 24
    assert found["refusal"] == "NotFoundError"


@pytest.fixture
def asked(options: Options) -> Options:
    """Return what the programs with tools ask for."""
    extra = {**CALM, "seed": options["seed"], "logit_bias": options["logit_bias"]}
    return {"messages": MESSAGES, "tools": TOOLS, "function": "get_weather", "schema": SCHEMA, "extra": extra}


@pytest.fixture
def expected_calls(api: openai.OpenAI, options: Options) -> dict[str, Any]:
    """Answers to the requests of the programs with tools, by OpenAI's own client."""

    def calls(**more: Any) -> tuple[list[Any], Any]:
        message = api.chat.completions.create(**options, tools=TOOLS, **more).choices[0].message
        functions = [call.function for call in message.tool_calls or [] if call.type == "function"]
        return [[each.name, json.loads(each.arguments)] for each in functions], message

    one: Any = {"type": "function", "function": {"name": "get_weather"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    required, message = calls(tool_choice="required", parallel_tool_calls=False)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}
    history: Any = [*MESSAGES, message.model_dump(exclude_none=True), result]
    after = api.chat.completions.create(
        **{**options, "messages": history, "max_completion_tokens": 1}, tools=TOOLS, tool_choice="none"
    )
    assert len(required) == 1 and after.usage
    return {
        "required": required,
        "streamed": required,
        "named": calls(tool_choice=one)[0],
        "allowed": calls(tool_choice=allowed)[0],
        "reason": "tool_calls",
        "tokens_with_result": after.usage.prompt_tokens,
    }


def test_langchain_with_tools(
    folder: Path, door: Server, asked: Options, expected_calls: dict[str, Any], tmp_path: Path
) -> None:
    program = [folder / "python", PROGRAMS / "langchain_tools_program.py"]
    found = json.loads(run([*program, url_of(door), MODEL, json.dumps(asked)], tmp_path))
    jsonschema.validate(found.pop("form"), SCHEMA)
    required = expected_calls["required"]
    assert found == {**expected_calls, "async": required, "responses": required}


def test_litellm_with_tools(
    folder: Path, door: Server, asked: Options, expected_calls: dict[str, Any], tmp_path: Path
) -> None:
    program = [folder / "python", PROGRAMS / "litellm_tools_program.py"]
    command = [*program, url_of(door), MODEL, json.dumps(asked)]
    found = json.loads(run(command, tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines()[-1])
    jsonschema.validate(found.pop("form"), SCHEMA)
    [[name, arguments]] = found.pop("as_vllm")
    assert name in [tool["function"]["name"] for tool in TOOLS]
    assert name != "get_weather" or set(SCHEMA["required"]) <= set(arguments)
    assert found == expected_calls


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_aiperf(folder: Path, door: Server, door_directory: Path, endpoint: str, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    pair = json.loads((door_directory / "model_repository" / "speculative" / "pair.json").read_text())
    shutil.copy(Path(pair["target_engine_dir"]) / "tokenizer.json", tokenizer)
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    run(
        [
            *(folder / "aiperf", "profile", "--model", MODEL, "--url", url_of(door)),
            *("--endpoint-type", endpoint, "--streaming", "--tokenizer", tokenizer, "--ui", "simple"),
            *("--request-count", 8, "--concurrency", 2, "--synthetic-input-tokens-mean", 20),
            *("--output-tokens-mean", 20, "--extra-inputs", "ignore_eos:true"),
            *("--output-artifact-dir", "results"),
        ],
        tmp_path,
    )
    profile = json.loads((tmp_path / "results" / "profile_export_aiperf.json").read_text())
    assert profile["request_count"]["avg"] == 8 and not profile.get("error_request_count")
    assert profile["time_to_first_token"]["avg"] > 0
    assert 0 < profile["spec_decode_draft_acceptance_rate"]["avg"] <= 100
    assert profile["spec_decode_acceptance_length"]["avg"] > 1
    metrics = (tmp_path / "results" / "server_metrics_export.csv").read_text()
    assert "vllm:spec_decode_num_draft_tokens" in metrics, "AIPerf reads /metrics beside the endpoint"
