"""Check a candidate before it is loaded: its engines, tokenizer, draft length and memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.canary.controller.candidate import CandidatePair, engine_manifest
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import EngineLoadError
from pipelines.manifest import MANIFEST_NAME, EngineFiles

_ROLES = ("draft", "target")


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Requirement in a few words.
        is_met: Whether the candidate meets it.
        evidence: Figures behind the result, ready for JSON.
        limit: Requirement in detail.
        remedy: What to do if the candidate does not meet it.
    """

    name: str
    is_met: bool
    evidence: dict[str, Any]
    limit: str
    remedy: str


def examine(candidate: CandidatePair, free_bytes: Callable[[], int]) -> tuple[Check, ...]:
    """Run all checks that need no loaded model.

    Args:
        candidate: Candidate and pair in service.
        free_bytes: Returns how many more bytes of host memory the server may use; called if that matters.

    Raises:
        CanaryError: The manifest of an engine cannot be read.
        ServerStartError: The run directory does not contain how its server was started.
    """
    pair, stable = candidate.pair, candidate.stable
    whole = _is_whole(pair)
    room = (_has_room(pair, free_bytes),) if whole.is_met else ()  # a damaged engine has no known size
    return (
        _is_another_pair(pair, stable),
        _has_the_tokenizer(pair, stable),
        _ends_texts_alike(pair, stable),
        whole,
        _takes_the_draft_length(pair),
        *room,
    )


def _is_another_pair(pair: PairRecord, stable: PairRecord) -> Check:
    override = _draft_length_in_force(pair)
    own = {side: pair_.num_draft_tokens for side, pair_ in (("candidate", pair), ("stable", stable))}
    engines = (pair.draft_fingerprint, pair.target_fingerprint)
    same_engines = engines == (stable.draft_fingerprint, stable.target_fingerprint)
    # A draft length set by ``draftproof draft-length`` overrides the recipes of both pairs.
    only_length = (
        same_engines
        and own["candidate"] != own["stable"]
        and pair.max_draft_len == stable.max_draft_len
        and override is not None
    )
    return Check(
        "it differs from the pair in service",
        pair.fingerprint != stable.fingerprint and not only_length,
        {
            "candidate": pair.fingerprint,
            "stable": stable.fingerprint,
            "num_draft_tokens": own,
            "draft_length_file": override,
        },
        "other engines, or other limits of the server",
        f"change the recipe; if it changes num_draft_tokens alone, remove {pair.draft_length_file}",
    )


def _has_the_tokenizer(pair: PairRecord, stable: PairRecord) -> Check:
    engines = {"candidate draft": (pair, "draft"), "candidate target": (pair, "target")}
    engines["stable target"] = (stable, "target")
    manifests = {name: engine_manifest(side, role) for name, (side, role) in engines.items()}
    identities = {name: each.get("tokenizer_identity_sha256") for name, each in manifests.items()}
    # The identity was computed from a file; it is invalid if that file was replaced in the engine.
    exchanged = [
        name
        for name, each in manifests.items()
        if each.get("files", {}).get("tokenizer.json", {}).get("sha256") != each.get("tokenizer_sha256")
    ]
    same = len(set(identities.values())) == 1 and None not in identities.values()
    return Check(
        "it has the tokenizer of the pair in service",
        same and not exchanged,
        {"tokenizer_identity_sha256": identities, "exchanged": exchanged},
        "the same tokenizer in both engines and in the target in service",
        "build the pair from checkpoints with that tokenizer",
    )


def _ends_texts_alike(pair: PairRecord, stable: PairRecord) -> Check:
    found = {
        name: engine_manifest(side, "target").get("end_ids")
        for name, side in (("candidate", pair), ("stable", stable))
    }
    return Check(
        "its texts end at the same tokens",
        found["candidate"] is not None and found["candidate"] == found["stable"],
        found,
        "the same end_ids in the manifests of both targets",
        "build the target from a checkpoint with the same end tokens",
    )


def _is_whole(pair: PairRecord) -> Check:
    damaged = [path for role in _ROLES for path in _damaged(pair, role)]
    return Check(
        "its engines are complete",
        not damaged,
        {"missing_or_changed": damaged},
        "the engines that the pair was rendered for, with every file as in its manifest",
        "delete the engine's directory and run 'draftproof engines'",
    )


def _damaged(pair: PairRecord, role: str) -> Iterator[str]:
    directory = Path(getattr(pair, f"{role}_engine_dir"))
    try:
        files = EngineFiles(directory, getattr(pair, f"{role}_digest"))
    except EngineLoadError:
        yield str(directory / MANIFEST_NAME)
    else:
        yield from map(str, files.changed())


def _takes_the_draft_length(pair: PairRecord) -> Check:
    override = _draft_length_in_force(pair)
    length = (override or {}).get("num_draft_tokens")
    return Check(
        "it supports the draft length that was set",
        length is None or length <= pair.max_draft_len,
        {"draft_length_file": override, "max_draft_len": pair.max_draft_len},
        "at most the candidate's max_draft_len, or its model does not load",
        "run 'draftproof draft-length' with a smaller number",
    )


def _draft_length_in_force(pair: PairRecord) -> dict[str, Any] | None:
    """Read what ``draftproof draft-length`` wrote; None if nothing was set or the file is invalid."""
    try:
        document = json.loads(Path(pair.draft_length_file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _has_room(pair: PairRecord, free_bytes: Callable[[], int]) -> Check:
    needed = available = 0
    if not pair.loads_at_start:  # otherwise it is loaded already
        engines = Path(pair.draft_engine_dir), Path(pair.target_engine_dir)
        needed, available = pair_bytes(*engines, pair.num_kv_blocks, pair.max_batch_size), free_bytes()
    return Check(
        "there is memory for it beside the pair in service",
        needed <= available,
        {"needed": needed, "available": available},
        "at most the available memory",
        "reduce the kv_cache sizes of the recipes, free memory, or use a larger machine",
    )
