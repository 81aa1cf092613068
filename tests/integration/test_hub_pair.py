"""Tests of ``draftproof try`` with two ids of a hub, and again offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.atomic_file import remove_directory
from pipelines.manifest import read_manifest
from tests.conftest import REPOSITORY_ROOT
from tests.support.hub_server import HubRepository, running_hub
from tests.support.hugging_face_checkpoints import make_hugging_face

pytestmark = [pytest.mark.triton, pytest.mark.slow]

NAME = "triedtarget-trieddraft"


@pytest.fixture
def left_nothing() -> Iterator[None]:
    """Remove the engines and the run directory, which lie in the checkout."""
    yield
    for folder in ("engines", ".run"):
        remove_directory(REPOSITORY_ROOT / folder / NAME)


@pytest.mark.long  # by day test_pair_from_the_hub.py reads from the hub
@pytest.mark.usefixtures("left_nothing")
def test_a_pair_of_the_hub_is_tried_and_tried_again_offline(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    texts = [f"def f{number}(x):\n    return x" for number in range(16)]
    prompts.write_text("".join(json.dumps({"id": text[:7], "text": text}) + "\n" for text in texts))
    with running_hub() as hub:
        for name in ("TriedTarget", "TriedDraft"):  # the same weights, so that draft tokens are accepted
            hub.repositories[f"org/{name}"] = HubRepository.of(make_hugging_face(tmp_path / name))
        hub.breaks_after = [100_000]
        command = [sys.executable, "-m", "pipelines", "try", "org/TriedTarget", "org/TriedDraft@main"]
        command += ["--quantization", "none", "--max-seq-len", "256", "--prompts", str(prompts), "--json"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY_ROOT)}
        environment.update(hub.environment(tmp_path / "cache", HF_TOKEN="hf_secretSecret"))
        for offline in ("0", "1"):
            environment["HF_HUB_OFFLINE"] = offline
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            shown = done.stdout + done.stderr
            assert done.returncode == 0, shown
            assert "hf_secretSecret" not in shown
            document = json.loads(done.stdout.splitlines()[-1])
            assert document["verdict"] == "pass" and document["answers_compared"] >= 24
            assert ("downloading" in shown) == (offline == "0")
        commit = hub.repositories["org/TriedTarget"].commit
    assert commit in (tmp_path / "TriedTarget-TriedDraft.yaml").read_text(encoding="utf-8")
    (engine,) = (REPOSITORY_ROOT / "engines" / NAME).glob("target-*")
    manifest = read_manifest(engine)
    assert manifest is not None and manifest["checkpoint"] == f"hf://org/TriedTarget@{commit}"
