"""Tests of what servers publish about their answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from build.repository import render_recipe
from pipelines.deploy import identity
from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import RepositoryError
from pipelines.manifest import EngineFiles, engine_digest
from tests.integration.conftest import tiny_recipe
from tests.support.tiny_engines import build_tiny_pair

IDENTITY = ServerIdentity("demo", "0" * 64, "embedded", "a processor", 2)


def test_a_server_is_known_by_target_and_machine(tmp_path: Path) -> None:
    draft, target = build_tiny_pair(tmp_path / "engines", draft="noisy")
    directory = render_recipe(tiny_recipe("tiny"), draft, target, tmp_path / "run").parent
    found = ServerIdentity.read(directory)
    assert (found.pair, found.runtime) == ("tiny", "embedded")
    assert found.target_digest == engine_digest(EngineFiles(target).manifest)
    wanted = json.loads((target / "engine.json").read_text())["num_threads"]
    assert 1 <= found.num_threads <= wanted
    assert found == ServerIdentity.read(directory) and found.answers_as(found)


def test_instructions_that_a_virtual_machine_hides_make_another_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(identity, "_CPU_INFO", info)
    told = []
    for flags in ("avx2 avx512f amx_int8", "avx2 avx512f", "avx2 avx512f"):
        info.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
        told.append(identity.processor_type())
    assert told[0] != told[1] == told[2]
    assert all(each.startswith("Some CPU ") for each in told)


def test_it_survives_the_way_to_a_client() -> None:
    assert ServerIdentity.of_extensions(["a", IDENTITY.extension, "b"]) == IDENTITY
    assert ServerIdentity.of_extensions(["a", "b"]) is None
    with pytest.raises(RepositoryError):
        ServerIdentity.of_extensions(["draftproof {}"])


def test_servers_answer_alike_only_if_everything_is_equal_and_computed_here() -> None:
    assert IDENTITY.answers_as(replace(IDENTITY))
    for other in (
        replace(IDENTITY, target_digest="1" * 64),
        replace(IDENTITY, processor="another"),
        replace(IDENTITY, num_threads=3),
    ):
        assert not IDENTITY.answers_as(other)
    theirs = replace(IDENTITY, runtime="tensorrt_llm")
    assert not theirs.answers_as(theirs), "it promises no equal bits"
