"""A server with a front door, and OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from build.repository import render_recipe
from pipelines.client import Client
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client, tiny_recipe
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import END_OF_TEXT, build_tiny_pair

MODEL = "tiny-door"

# More than a connection holds, so the request is in progress until its answer is read.
UNREAD = {"prompt": "def f(", "max_tokens": 480, "n": 4, "ignore_eos": True, "stream": True, "logprobs": 20}

_WITHIN_S = 120.0  # also on a busy machine, while the front door is started again


# The demonstration pair's tokenizer has one special token.
TEMPLATE = (
    "{% for message in messages %}<|endoftext|>{{ message.role }}\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)


# For requests with tools, after Qwen3's: calls in JSON between tags, and thoughts before the answer.
TOOLS_TEMPLATE = (
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|endoftext|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{{ \'{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) ~ '}' }}"
    "\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n"
    "{% if enable_thinking is defined %}<think>\n{% if not enable_thinking %}</think>\n{% endif %}{% endif %}"
    "{% endif %}"
)


@pytest.fixture(scope="session")
def door_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the engines of draft and target, which has a chat template."""
    draft, target = build_tiny_pair(tmp_path_factory.mktemp("door"), draft="noisy", num_threads=1)
    document = {
        "templates": {"default": TEMPLATE, "tool_use": TOOLS_TEMPLATE},
        "special_tokens": {},
        "special_names": [END_OF_TEXT],
    }
    (target / "chat.json").write_text(json.dumps(document), encoding="utf-8")
    return draft, target


@pytest.fixture(scope="session")
def door_directory(door_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run directory of the pair."""
    return render_recipe(tiny_recipe(MODEL), *door_pair, tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="session")
def door(door_directory: Path) -> Iterator[Server]:
    """Return a ready server with a front door; its files have the mark ``xdist_group("front door")``."""
    with ready_server(door_directory, with_openai=True) as running:
        yield running


@pytest.fixture(scope="session")
def new_door(
    door_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[Server]]:
    """Return a function that runs another server of the pair, with settings of the front door as YAML."""

    def run(settings: str = "{}") -> AbstractContextManager[Server]:
        directory = render_recipe(tiny_recipe(MODEL), *door_pair, tmp_path_factory.mktemp("run")).parent
        path = directory / "front_door.yaml"
        path.write_text(settings, encoding="utf-8")
        return ready_server(directory, with_openai=True, front_door=path)

    return run


IMPATIENT = "{write_timeout_s: 1.0, header_timeout_s: 1.0, body_timeout_s: 1.0, max_body_bytes: 100000}"


@pytest.fixture(scope="session")
def impatient(new_door: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    """Return a server with short times for clients; tests may kill its front door."""
    with new_door(IMPATIENT) as running:
        yield running


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.ports.openai}"


def openai_client(server: Server, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url_of(server)}/v1", **{"api_key": "none", "max_retries": 0, **options})


@pytest.fixture
def api(door: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's client, connected to the front door."""
    with openai_client(door) as client:
        yield client


@pytest.fixture
def router(door: Server) -> Iterator[Client]:
    """Our client, which asks the same server over gRPC."""
    with grpc_client(door) as client:
        yield client


def get(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"{url_of(server)}{path}", timeout=_WITHIN_S, trust_env=False)


def post(server: Server, path: str, body: Any) -> httpx.Response:
    """Post a body, which may be no JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"{url_of(server)}{path}"
    return httpx.post(url, content=content, timeout=_WITHIN_S, trust_env=False)


def events_of(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the data of all events of a stream; some streams end with ``[DONE]``."""
    response = post(server, path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *events, rest = response.content.decode().split("\n\n")
    assert rest == ""
    lines = [event.splitlines()[-1] for event in events]  # behind a line with its type, if it has one
    data = [line.removeprefix("data: ") for line in lines]
    return [each if each == "[DONE]" else json.loads(each) for each in data]
