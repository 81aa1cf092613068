"""Tests of the checks that keep a candidate from being loaded, each with its evidence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.tokenizer_file import read_tokenizer
from build.files import write_manifest
from build.recipe import Recipe, load_recipe
from build.rendering.second_pair import render_second_pair
from build.repository import render_recipe
from pipelines.canary.checks.preflight import Check, examine
from pipelines.canary.controller.candidate import CandidatePair, engine_manifest
from pipelines.engine_memory import PROCESS_BYTES
from pipelines.manifest import checked_engine, sha256_file
from tests.support.tiny_engines import write_tokenizer

DEMO = load_recipe("demo")
ENGINE = {
    "num_layers": 12,
    "num_kv_heads": 3,
    "head_size": 64,
    "kv_block_size": 32,
    "kv_cache_dtype": "float32",
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
    """Render a candidate; ``draft`` and ``target`` change the manifests of its engines."""

    def make(recipe: Recipe = DEMO, **engines: dict[str, Any]) -> CandidatePair:
        folders = [
            write_engine(tmp_path / "new" / role, **{"fingerprint": f"{role}-2", **engines.get(role, {})})
            for role in ("draft", "target")
        ]
        return CandidatePair.read(run, render_second_pair(recipe, *folders, run).speculative_model)

    return make


def roomy() -> int:
    return 64 * GIB


def refused(candidate: CandidatePair, free_bytes: Callable[[], int] = roomy) -> Check:
    """Return the only check that fails."""
    checks = examine(candidate, free_bytes)
    [check] = [each for each in checks if not each.is_met]
    assert check.evidence and check.limit and check.remedy
    return check


def passes(candidate: CandidatePair) -> bool:
    return all(check.is_met for check in examine(candidate, roomy))


def test_a_good_candidate_passes(rendered: Callable[..., CandidatePair]) -> None:
    checks = examine(rendered(), roomy)
    assert all(check.is_met for check in checks)
    assert len(checks) == 7
    json.dumps([dataclasses.asdict(check) for check in checks])


def test_the_pair_in_service_is_no_candidate(rendered: Callable[..., CandidatePair]) -> None:
    same = {role: {"fingerprint": f"{role}-1"} for role in ("draft", "target")}
    assert "it differs" in refused(rendered(**same)).name


def test_a_draft_length_that_people_have_set_hides_that_of_the_recipe(
    rendered: Callable[..., CandidatePair], run: Path
) -> None:
    """Otherwise both pairs would draft equally, and the rollout would compare a pair with itself."""
    same = {role: {"fingerprint": f"{role}-1"} for role in ("draft", "target")}
    shorter = dataclasses.replace(DEMO, serving=dataclasses.replace(DEMO.serving, num_draft_tokens=3))
    candidate = rendered(shorter, **same)
    assert passes(candidate)
    (run / "draft_length.json").write_text('{"num_draft_tokens": null}')
    check = refused(candidate)
    assert check.evidence["draft_length_file"] == {"num_draft_tokens": None}
    assert "draft_length.json" in check.remedy


def test_a_ceiling_below_the_draft_length_in_force_is_found(
    rendered: Callable[..., CandidatePair], run: Path
) -> None:
    low = dataclasses.replace(DEMO.serving, max_draft_len=2, num_draft_tokens=None)
    candidate = rendered(dataclasses.replace(DEMO, serving=low))
    assert passes(candidate)
    (run / "draft_length.json").write_text('{"num_draft_tokens": 3}')
    assert refused(candidate).evidence["max_draft_len"] == 2


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("identity", ["another", None])
def test_another_tokenizer_is_refused(
    rendered: Callable[..., CandidatePair], role: str, identity: str | None
) -> None:
    changes = {"tokenizer_identity_sha256": identity, "tokenizer_sha256": "1" * 64}
    check = refused(rendered(**{role: changes}))
    assert "tokenizer" in check.name
    assert check.evidence["tokenizer_identity_sha256"][f"candidate {role}"] == identity


def test_an_identity_of_an_older_version_is_no_difference_if_the_file_is_the_same(
    rendered: Callable[..., CandidatePair],
) -> None:
    """An earlier version computed the identity from other fields."""
    assert passes(rendered(target={"tokenizer_identity_sha256": "0" * 64}))


def test_an_exchanged_tokenizer_is_refused(rendered: Callable[..., CandidatePair]) -> None:
    check = refused(rendered(target={"tokenizer_sha256": "0" * 64}))
    assert check.evidence["exchanged"] == ["candidate target"]


def test_an_engine_exchanged_after_the_rendering_is_refused_though_its_manifest_fits(
    rendered: Callable[..., CandidatePair],
) -> None:
    candidate = rendered()
    directory = Path(candidate.pair.target_engine_dir)
    content = engine_manifest(candidate.pair, "target")
    (directory / "engine.bin").write_bytes(b"weighty")
    write_manifest(directory, content)
    checked_engine(directory)  # intact in itself
    assert refused(candidate).evidence == {"missing_or_changed": [str(directory / "manifest.json")]}


@pytest.mark.parametrize("end_ids", [[1], [0, 1], None])
def test_another_end_of_texts_is_refused(
    rendered: Callable[..., CandidatePair], end_ids: list[int] | None
) -> None:
    assert "end" in refused(rendered(target={"end_ids": end_ids})).name


@pytest.mark.parametrize("names", [("tokenizer_identity_sha256", "tokenizer_sha256"), ("end_ids",)])
def test_what_no_manifest_says_is_not_taken_to_be_equal(
    rendered: Callable[..., CandidatePair], tmp_path: Path, names: tuple[str, ...]
) -> None:
    candidate = rendered()
    for path in tmp_path.rglob("manifest.json"):
        content = json.loads(path.read_text())
        for name in names:
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
    draft, target = (
        engine.kv_cache.num_blocks * 32 * 12 * 2 * 3 * 64 * 4 + len(b"weights")
        for engine in (DEMO.draft, DEMO.target)
    )
    assert check.evidence["host"]["needed"] == draft + target + PROCESS_BYTES
    assert check.evidence["host"]["available"] == GIB


def test_gpus_are_shared_by_both_pairs(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    pair, stable = (
        dataclasses.replace(each, runtime="tensorrt_llm", gpu_bytes={"0": taken}, gpu_usable_bytes=77 * GIB)
        for each, taken in ((candidate.pair, 40 * GIB), (candidate.stable, 38 * GIB))
    )
    check = refused(dataclasses.replace(candidate, pair=pair, stable=stable))
    assert check.evidence == {"0": {"needed": 40 * GIB, "available": 39 * GIB}}


def test_a_pair_of_another_runtime_is_refused(rendered: Callable[..., CandidatePair]) -> None:
    candidate = rendered()
    other = dataclasses.replace(candidate.stable, runtime="tensorrt_llm")
    assert "runtime" in refused(dataclasses.replace(candidate, stable=other)).name
