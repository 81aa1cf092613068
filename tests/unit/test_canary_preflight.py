"""What keeps a candidate from being loaded, each with its evidence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.beside import render_beside
from build.manifest import sha256_file, write_manifest
from build.recipe import Recipe, load_recipe
from build.repository import render_recipe
from build.tokenizer_file import read_tokenizer
from pipelines.canary import memory
from pipelines.canary.candidate import CandidatePair
from pipelines.canary.preflight import Check, examine, require
from pipelines.errors import CanaryError
from tests.tiny_engines import write_tokenizer

DEMO = load_recipe("demo")
ENGINE = {
    "num_layers": 12,
    "num_kv_heads": 3,
    "head_size": 64,
    "kv_block_size": 32,
    "kv_cache_dtype": "float32",
    "weight_bytes_per_step": 100_000_000,
}
GIB = 1 << 30


def write_engine(directory: Path, fingerprint: str, **manifest: Any) -> Path:
    directory.mkdir(parents=True)
    (directory / "engine.bin").write_bytes(b"weights")
    (directory / "engine.json").write_text(json.dumps(ENGINE))
    write_tokenizer(directory / "tokenizer.json")
    write_manifest(
        directory, {"fingerprint": fingerprint, "end_ids": [0], **tokenizer(directory), **manifest}
    )
    return directory


def tokenizer(directory: Path) -> dict[str, str]:
    path = directory / "tokenizer.json"
    return {
        "tokenizer_identity_sha256": read_tokenizer(path).sha256,
        "tokenizer_sha256": sha256_file(path),
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    engines = [write_engine(tmp_path / f"{role}-1", f"{role}-1") for role in ("draft", "target")]
    return render_recipe(DEMO, *engines, tmp_path).parent


@pytest.fixture
def rendered(tmp_path: Path, run: Path) -> Callable[..., CandidatePair]:
    """Render a candidate; ``draft`` and ``target``: changes of the manifests of its engines."""

    def make(recipe: Recipe = DEMO, **engines: dict[str, Any]) -> CandidatePair:
        folders = [
            write_engine(tmp_path / "new" / role, **{"fingerprint": f"{role}-2", **engines.get(role, {})})
            for role in ("draft", "target")
        ]
        return CandidatePair.read(run, render_beside(recipe, *folders, run).speculative_model)

    return make


def roomy() -> int:
    return 64 * GIB


def refused(candidate: CandidatePair, free_bytes: Callable[[], int] = roomy) -> Check:
    """The one check that is not met."""
    checks = examine(candidate, free_bytes)
    [check] = [each for each in checks if not each.is_met]
    with pytest.raises(CanaryError, match="refused before it is loaded") as caught:
        require(checks)
    assert caught.value.what.endswith(check.name)
    assert json.loads(caught.value.values) == check.evidence
    assert caught.value.limit and caught.value.remedy
    return check


def test_a_good_candidate_passes(rendered: Callable[..., CandidatePair]) -> None:
    checks = examine(rendered(), roomy)
    require(checks)
    assert len(checks) == 8
    json.dumps([dataclasses.asdict(check) for check in checks])


def test_the_pair_in_service_is_no_candidate(rendered: Callable[..., CandidatePair]) -> None:
    same = {role: {"fingerprint": f"{role}-1"} for role in ("draft", "target")}
    assert "another pair" in refused(rendered(**same)).name


def test_a_draft_length_that_people_have_set_hides_that_of_the_recipe(
    rendered: Callable[..., CandidatePair], run: Path
) -> None:
    """Then the two pairs would draft alike, and the rollout would compare a pair with itself."""
    same = {role: {"fingerprint": f"{role}-1"} for role in ("draft", "target")}
    shorter = dataclasses.replace(DEMO, serving=dataclasses.replace(DEMO.serving, num_draft_tokens=3))
    candidate = rendered(shorter, **same)
    require(examine(candidate, roomy))
    (run / "draft_length.json").write_text('{"num_draft_tokens": null}')
    check = refused(candidate)
    assert check.evidence["draft_length_file"] == {"num_draft_tokens": None}
    assert "draft_length.json" in check.remedy


def test_a_ceiling_below_the_draft_length_in_force_is_found(
    rendered: Callable[..., CandidatePair], run: Path
) -> None:
    low = dataclasses.replace(DEMO.serving, max_draft_len=2, num_draft_tokens=None)
    candidate = rendered(dataclasses.replace(DEMO, serving=low))
    require(examine(candidate, roomy))
    (run / "draft_length.json").write_text('{"num_draft_tokens": 3}')
    assert refused(candidate).evidence["max_draft_len"] == 2


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("identity", ["another", None])
def test_another_tokenizer_is_refused(
    rendered: Callable[..., CandidatePair], role: str, identity: str | None
) -> None:
    check = refused(rendered(**{role: {"tokenizer_identity_sha256": identity}}))
    assert "tokenizer" in check.name
    assert check.evidence["tokenizer_identity_sha256"][f"candidate {role}"] == identity


def test_an_exchanged_tokenizer_is_refused_though_the_manifest_fits_the_files(
    rendered: Callable[..., CandidatePair],
) -> None:
    candidate = rendered()
    directory = Path(candidate.pair.target_engine_dir)
    content = candidate.pair.manifest("target")
    document = json.loads((directory / "tokenizer.json").read_text())
    document["model"]["merges"].reverse()
    (directory / "tokenizer.json").write_text(json.dumps(document))
    (directory / "manifest.json").unlink()
    write_manifest(directory, {name: value for name, value in content.items() if name != "files"})
    assert refused(candidate).evidence["exchanged"] == ["candidate target"]


@pytest.mark.parametrize("end_ids", [[1], [0, 1], None])
def test_another_end_of_texts_is_refused(
    rendered: Callable[..., CandidatePair], end_ids: list[int] | None
) -> None:
    assert "end" in refused(rendered(target={"end_ids": end_ids})).name


@pytest.mark.parametrize("name", ["tokenizer_identity_sha256", "end_ids"])
def test_what_no_manifest_says_is_not_taken_to_be_equal(
    rendered: Callable[..., CandidatePair], tmp_path: Path, name: str
) -> None:
    candidate = rendered()
    for path in tmp_path.rglob("manifest.json"):
        content = json.loads(path.read_text())
        del content[name]
        path.write_text(json.dumps(content))
    refused(candidate)


def test_an_engine_that_is_not_whole_is_refused(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    changed = Path(candidate.pair.draft_engine_dir) / "engine.bin"
    changed.write_bytes(b"weighty")
    missing = Path(candidate.pair.target_engine_dir) / "engine.bin"
    missing.unlink()
    assert refused(candidate).evidence == {"missing_or_changed": [str(changed), str(missing)]}


def test_a_pair_without_room_is_refused(rendered: Callable[..., CandidatePair]) -> None:
    check = refused(rendered(), lambda: GIB)
    per_engine = DEMO.target.kv_cache.num_blocks * 32 * 12 * 2 * 3 * 64 * 4 + 2 * 100_000_000
    blocks = DEMO.draft.kv_cache.num_blocks / DEMO.target.kv_cache.num_blocks
    draft = (per_engine - 2 * 100_000_000) * blocks + 2 * 100_000_000
    # Two processes: the loop with both engines, and the target alone.
    assert check.evidence["host"]["needed"] == draft + 2 * per_engine + 2 * memory.PROCESS_BYTES
    assert check.evidence["host"]["available"] == GIB


def test_an_engine_that_does_not_say_what_it_takes(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    (Path(candidate.pair.draft_engine_dir) / "engine.json").write_text("{}")
    with pytest.raises(CanaryError, match=r"how much memory it takes; .*draft/engine.json"):
        examine(candidate, roomy)


def test_gpus_are_shared_by_both_pairs(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    pair, stable = (
        dataclasses.replace(each, runtime="tensorrt_llm", gpu_bytes={"0": taken}, gpu_usable_bytes=77 * GIB)
        for each, taken in ((candidate.pair, 40 * GIB), (candidate.stable, 38 * GIB))
    )
    check = refused(dataclasses.replace(candidate, pair=pair, stable=stable))
    assert check.evidence == {"0": {"needed": 40 * GIB, "available": 39 * GIB}}


@pytest.mark.parametrize(
    ("launch", "is_met"),
    [
        ({"mode": "orchestrator", "spawns_workers": True}, True),
        ({"mode": "orchestrator", "spawns_workers": False}, False),
        ({"mode": "leader", "spawns_workers": False}, False),
    ],
)
def test_engines_of_ranks_that_mpi_started_cannot_be_added_to(
    rendered: Callable[..., CandidatePair], run: Path, launch: dict[str, Any], is_met: bool
) -> None:
    candidate = rendered()
    document = {"runtime": "tensorrt_llm", "gpu_device_ids": [0], **launch}
    (run / "launch.json").write_text(json.dumps(document))
    found = {check.name: check.is_met for check in examine(candidate, roomy)}
    assert found["the server can load engines while it runs"] is is_met


def test_a_pair_of_another_runtime_is_refused(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    other = dataclasses.replace(candidate.stable, runtime="tensorrt_llm")
    assert "runtime" in refused(dataclasses.replace(candidate, stable=other)).name
