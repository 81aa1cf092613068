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

pytestmark = [pytest.mark.triton, pytest.mark.long, pytest.mark.xdist_group("front door")]

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
def answers(api: openai.OpenAI) -> dict[str, Any]:
    """Answers to the requests of the programs, by OpenAI's own client."""
    common: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 24}
    messages: Any = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Hello"}]
    chat = api.chat.completions.create(messages=messages, **common).choices[0].message.content
    text = api.completions.create(prompt="def area(", **common).choices[0].text
    return {"completion": text, "chat": chat, "usage": 24, "refusal": 404}


@pytest.fixture
def calls(api: openai.OpenAI, options: Options) -> dict[str, Any]:
    """Answers to the requests of the programs with tools, by OpenAI's own client."""

    def ask(**more: Any) -> tuple[list[Any], Any]:
        message = api.chat.completions.create(**options, tools=TOOLS, **more).choices[0].message
        functions = [call.function for call in message.tool_calls or [] if call.type == "function"]
        return [[each.name, json.loads(each.arguments)] for each in functions], message

    one: Any = {"type": "function", "function": {"name": "get_weather"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    required, message = ask(tool_choice="required", parallel_tool_calls=False)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}
    history: Any = [*MESSAGES, message.model_dump(exclude_none=True), result]
    after = api.chat.completions.create(
        **{**options, "messages": history, "max_completion_tokens": 1}, tools=TOOLS, tool_choice="none"
    )
    assert len(required) == 1 and after.usage
    return {
        "required": required,
        "named": ask(tool_choice=one)[0],
        "allowed": ask(tool_choice=allowed)[0],
        "reason": "tool_calls",
        "tokens_with_result": after.usage.prompt_tokens,
    }


@pytest.mark.parametrize("program", ["langchain_program.py", "litellm_program.py", "anthropic_program.py"])
def test_a_client_gets_the_answers_and_calls_of_openais_own(
    program: str,
    folder: Path,
    door: Server,
    options: Options,
    answers: dict[str, Any],
    calls: dict[str, Any],
    tmp_path: Path,
) -> None:
    extra = {**CALM, "seed": options["seed"], "logit_bias": options["logit_bias"]}
    asked = {
        "messages": MESSAGES,
        "tools": TOOLS,
        "function": "get_weather",
        "schema": SCHEMA,
        "extra": extra,
    }
    command = [folder / "python", PROGRAMS / program, url_of(door), MODEL, json.dumps(asked)]
    found = json.loads(run(command, tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True").splitlines()[-1])
    jsonschema.validate(found["form"], SCHEMA)
    for name, told in found["answers"].items():  # such as chat_stream
        assert told == answers[name.split("_")[0]], name
    same = {"streamed": "required", "async": "required", "responses": "required"}
    for name, told in found["calls"].items():
        assert told == calls[same.get(name, name)], name


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
