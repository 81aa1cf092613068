"""Tests of the checks that keep a candidate from being loaded, each with its evidence."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from build.files import write_manifest
from pipelines.canary.checks.preflight import Check, examine
from pipelines.canary.controller.candidate import CandidatePair, engine_manifest
from pipelines.engine_memory import PROCESS_BYTES
from pipelines.errors import CanaryError
from pipelines.manifest import checked_engine
from tests.unit.canary.conftest import DEMO, Render

GIB = 1 << 30


def refused(candidate: CandidatePair, free_bytes: int = 64 * GIB) -> Check:
    """Return the only check that fails."""
    [check] = [each for each in examine(candidate, lambda: free_bytes) if not each.is_met]
    assert check.evidence and check.limit and check.remedy
    return check


def test_a_good_candidate_passes(rendered: Render) -> None:
    checks = examine(rendered(), lambda: 64 * GIB)
    assert [check.is_met for check in checks] == [True] * 6
    json.dumps([asdict(check) for check in checks])


OTHER = {"tokenizer_identity_sha256": "another", "tokenizer_sha256": "1" * 64}
TOKENIZER, END = "it has the tokenizer of the pair in service", "its texts end at the same tokens"


@pytest.mark.parametrize(
    ("manifests", "name", "evidence"),
    [
        *(({role: OTHER}, TOKENIZER, f"'candidate {role}': 'another'") for role in ("draft", "target")),
        ({"target": {**OTHER, "tokenizer_identity_sha256": None}}, TOKENIZER, "'candidate target': None"),
        # the file was replaced in the engine, so the identity is not its own
        ({"target": {"tokenizer_sha256": "0" * 64}}, TOKENIZER, "'exchanged': ['candidate target']"),
        *(({"target": {"end_ids": ids}}, END, f"'candidate': {ids}") for ids in ([1], [0, 1], None)),
    ],
)
def test_another_tokenizer_or_end_of_texts_is_refused(
    manifests: dict[str, Any], name: str, evidence: str, rendered: Render
) -> None:
    check = refused(rendered(**manifests))
    assert check.name == name
    assert evidence in str(check.evidence)


@pytest.mark.parametrize("names", [("tokenizer_identity_sha256", "tokenizer_sha256"), ("end_ids",)])
def test_what_no_manifest_says_is_not_taken_to_be_equal(
    names: tuple[str, ...], rendered: Render, tmp_path: Path
) -> None:
    candidate = rendered()
    for path in tmp_path.rglob("manifest.json"):
        known = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in known.items() if name not in names}))
    refused(candidate)


def test_the_pair_in_service_with_another_draft_length_is_no_candidate(rendered: Render, run: Path) -> None:
    """A draft length that people have set overrides both recipes, so both pairs would draft equally."""
    stable = rendered((1, 1)).stable
    assert "it differs" in refused(CandidatePair(stable, stable)).name
    shorter = rendered((1, 1), replace(DEMO, serving=replace(DEMO.serving, num_draft_tokens=3)))
    assert all(check.is_met for check in examine(shorter, lambda: 64 * GIB))
    (run / "draft_length.json").write_text('{"num_draft_tokens": null}')
    check = refused(shorter)
    assert check.evidence["draft_length_file"] == {"num_draft_tokens": None}
    assert "draft_length.json" in check.remedy


def test_a_ceiling_below_the_draft_length_in_force_is_found(rendered: Render, run: Path) -> None:
    low = replace(DEMO.serving, max_draft_len=2, num_draft_tokens=None)
    candidate = rendered(recipe=replace(DEMO, serving=low))
    (run / "draft_length.json").write_text('{"num_draft_tokens": 2}')
    assert all(check.is_met for check in examine(candidate, lambda: 64 * GIB))
    (run / "draft_length.json").write_text('{"num_draft_tokens": 3}')
    assert refused(candidate).evidence["max_draft_len"] == 2


def test_engines_that_changed_after_the_rendering_are_refused(rendered: Render) -> None:
    pair = (candidate := rendered()).pair
    target = Path(pair.target_engine_dir)
    manifest = engine_manifest(pair, "target")
    (target / "engine.bin").write_bytes(b"weighty")
    assert refused(candidate).evidence == {"missing_or_changed": [str(target / "engine.bin")]}
    write_manifest(target, manifest)
    checked_engine(target)  # intact in itself, but another one
    assert refused(candidate).evidence == {"missing_or_changed": [str(target / "manifest.json")]}
    (target / "manifest.json").write_text("[]")
    with pytest.raises(CanaryError, match=r"manifest .*/manifest.json; .*; run 'draftproof engines'"):
        engine_manifest(pair, "target")
    missing = Path(pair.draft_engine_dir) / "engine.bin"
    missing.unlink()
    write_manifest(target, manifest)
    assert str(missing) in refused(candidate).evidence["missing_or_changed"]


def test_a_pair_without_room_is_refused(rendered: Render) -> None:
    check = refused(rendered(), GIB)
    draft, target = (
        engine.kv_cache.num_blocks * 32 * 12 * 2 * 3 * 64 * 4 + len(b"weights")
        for engine in (DEMO.draft, DEMO.target)
    )
    assert check.evidence == {"needed": draft + target + PROCESS_BYTES, "available": GIB}
