"""Tests of a second pair for TensorRT-LLM beside the first, on stand-ins for NVIDIA's models.

Whether NVIDIA's backend can load an engine while it serves is untested.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build.rendering.second_pair import render_second_pair
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.deploy.server import Server
from tests.integration.conftest import read_gauge, repository_api, wait_until
from tests.integration.test_two_pairs import tokens_of, traffic
from tests.stand_in_tensorrt_llm import repository as stand_in
from tests.support.ready_server import ready_server

pytestmark = [pytest.mark.triton, pytest.mark.long]  # a stand-in of TensorRT-LLM


def write_engine(directory: Path, role: str, fingerprint: str) -> Path:
    engine = stand_in.write_engine(directory / role, role, stand_in.recipe())
    manifest = json.loads((engine / "manifest.json").read_text())
    (engine / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": fingerprint}))
    return engine


def num_failures(server: Server, model: str) -> float:
    return read_gauge(server, "draftproof_draft_failures_total", model=model)


def num_asked(engine: Path) -> int:
    """Count the requests that the stand-in for an engine recorded."""
    log = engine / "requests.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize(
    ("draft", "target"), [pytest.param("another", "target", marks=pytest.mark.long), ("another", "other")]
)
def test_the_loop_of_a_pair_reaches_its_own_engines_and_those_that_are_shared(
    tmp_path_factory: pytest.TempPathFactory, draft: str, target: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("run")  # short, because the path of a socket has at most 107 bytes
    run = stand_in.render(tmp_path, stand_in.recipe())
    engines = [
        write_engine(tmp_path / "new", role, name) for role, name in (("draft", draft), ("target", target))
    ]
    with ready_server(run) as server:
        record = render_second_pair(
            stand_in.recipe(serving={"num_draft_tokens": 3}), *engines, run, stand_in.MEMORY
        )
        pair = CandidatePair.read(run, record.speculative_model).pair
        own_draft, own_engines = f"draft_{pair.hash}", (f"draft_{pair.hash}", f"target_{pair.hash}")
        for model in pair.models:
            if model in own_engines:
                stand_in.stand_in(run / "model_repository" / model)
        assert (own_engines[1] in pair.models) == (target != "target")
        with repository_api(server) as api, traffic(server) as seen:
            for model in pair.models:
                api.load(model)
            right = tokens_of(server, "speculative", 40)
            assert tokens_of(server, pair.speculative_model, 40) == right
            assert tokens_of(server, pair.control_model, 40) == right
            assert num_failures(server, pair.speculative_model) == 0
            asked = [role for role in ("draft", "target") if num_asked(tmp_path / "new" / role)]
            assert asked == [role for role in ("draft", "target") if f"{role}_{pair.hash}" in pair.models]
            api.unload(own_draft)
            assert tokens_of(server, pair.speculative_model, 40) == right
            assert wait_until(lambda: num_failures(server, pair.speculative_model) > 0)
            assert num_failures(server, "speculative") == 0
            api.unload(pair.speculative_model)
        assert seen.num_answers > 0
        assert (seen.wrong, seen.not_ready) == ([], [])
