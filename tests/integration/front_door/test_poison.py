"""Tests of a request that ends the engine's process: it is refused, and the answers of others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from build.repository import render_recipe
from pipelines.deploy.server import Server
from tests.integration.conftest import read_gauge, tiny_recipe
from tests.integration.front_door.conftest import MODEL, events_of, post
from tests.support.mortal_engine import POISON, make_mortal
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton

NUM_OTHERS = 3
OTHER: dict[str, Any] = {"prompt": "def f(", "max_tokens": 400, "ignore_eos": True}
KILLER: dict[str, Any] = {"prompt": POISON, "max_tokens": 4}


@pytest.fixture(scope="module")
def directory(door_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render_recipe(tiny_recipe(MODEL), *door_pair, tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="module")
def late(directory: Path) -> Path:
    """Return the file that lets Triton hear late that the engine has loaded."""
    return make_mortal(directory)


@pytest.fixture(scope="module")
def mortal(directory: Path, late: Path) -> Iterator[Server]:
    with ready_server(directory, with_openai=True) as server:
        yield server


def text_of(server: Server, seed: int) -> str:
    *events, end = events_of(server, "/v1/completions", {**OTHER, "seed": seed})
    assert end == "[DONE]" and not any("error" in event for event in events)
    return "".join(choice["text"] for event in events for choice in event["choices"])


def num_replaced(server: Server) -> float:
    try:
        return read_gauge(server, "draftproof_model_replaced_total", model="speculative")
    except LookupError:
        return 0.0


def test_a_poison_request_ends_two_processes_and_no_answer_of_others(mortal: Server) -> None:
    expected = [text_of(mortal, seed) for seed in range(NUM_OTHERS)]
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(text_of, mortal, seed) for seed in range(NUM_OTHERS)]
        time.sleep(0.3)
        killed = post(mortal, "/v1/completions", KILLER)
        assert [other.result() for other in others] == expected
    assert killed.status_code == 400, killed.text
    error = killed.json()["error"]
    assert error["type"] == "invalid_request_error" and "10 minutes" in error["remedy"]
    assert num_replaced(mortal) == 2
    assert post(mortal, "/v1/completions", {**KILLER, "stream": True}).status_code == 400
    assert text_of(mortal, 0) == expected[0]
    assert num_replaced(mortal) == 2


def test_a_request_that_ends_an_engine_which_still_loads_costs_no_restart_of_triton(
    mortal: Server, late: Path
) -> None:
    """It waits for the engine, and reaches its socket before Triton knows that the model has loaded."""
    num_before = num_replaced(mortal)
    late.touch()
    killed = post(mortal, "/v1/completions", {**KILLER, "max_tokens": 5})
    late.unlink()
    assert killed.status_code == 400 and "10 minutes" in killed.json()["error"]["remedy"]
    assert text_of(mortal, 0)
    assert num_replaced(mortal) == num_before + 1, "it died once in service and once before"
    assert read_gauge(mortal, "draftproof_triton_restarts_total") == 0
