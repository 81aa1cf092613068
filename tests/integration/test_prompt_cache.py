"""A prompt that one server has computed is read by the next one, whatever ended the first."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.process import processes_with
from tests.integration.conftest import TIMEOUTS, read_gauge, wait_until
from tests.support.ready_server import ready_server

NUM_BLOCKS = 9
PROMPT = tuple(7 + 31 * number % 1900 for number in range(32 * NUM_BLOCKS + 5))

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("prompt cache")]


def answer(server: Server, model: str = "generate", salt: str = "") -> tuple[tuple[int, ...], int]:
    """Return the answer to the prompt, and how many of its tokens were cached."""
    asked = CompletionRequest(prompt_ids=PROMPT, max_tokens=24, end_id=-1, cache_salt=salt)
    with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", TIMEOUTS) as client:
        chunks = list(client.stream(asked, model))
    return tuple(token_id for chunk in chunks for token_id in chunk.output_ids), chunks[-1].num_cached


def test_a_server_that_was_killed_leaves_its_prompts_to_the_next(render: Callable[..., Path]) -> None:
    directory = render("cached", "router")
    folder = directory / "prompt_cache"
    with ready_server(directory) as server:
        computed, num_cached = answer(server)
        assert num_cached == 0
        assert wait_until(lambda: len(list(folder.glob("*.block"))) >= 2 * NUM_BLOCKS)  # of target and draft
        for process, _ in processes_with(prefix_of(directory)):
            os.kill(process.pid, signal.SIGKILL)
        os.kill(server.process.pid, signal.SIGKILL)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.block")} == {0o600}
    with ready_server(directory) as server:
        assert "start: the prompt cache" in server.log.read_text(encoding="utf-8")
        assert answer(server, salt="another") == (computed, 0)
        assert answer(server, "generate_target") == (computed, 0), "the target alone reads nothing"
        assert answer(server) == (computed, 32 * NUM_BLOCKS)
        name = "draftproof_prompt_tokens_total"
        assert wait_until(lambda: read_gauge(server, name, source="disk") == 32 * NUM_BLOCKS)
        assert read_gauge(server, "draftproof_prompt_cache_damaged_total") == 0
        for path in folder.glob("*.block"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with ready_server(directory) as server:
        assert answer(server) == (computed, 0)
        assert wait_until(lambda: read_gauge(server, "draftproof_prompt_cache_damaged_total") >= 1)
