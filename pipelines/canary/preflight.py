"""What a candidate must be before it is loaded: another pair for the same text, whole, and with room."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.canary.candidate import CandidatePair, Pair
from pipelines.canary.memory import memory_of
from pipelines.deploy.launch import Launch
from pipelines.errors import CanaryError

_CHUNK_BYTES = 1 << 22
_ROLES = ("draft", "target")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: In a word or two.
        is_met: Whether the candidate may be loaded, as far as this goes.
        evidence: What was found, ready for JSON.
        limit: What must hold.
        remedy: What to do if it does not.
    """

    name: str
    is_met: bool
    evidence: dict[str, Any]
    limit: str
    remedy: str


def examine(candidate: CandidatePair, free_bytes: Callable[[], int]) -> tuple[Check, ...]:
    """Everything that can be known without loading a model.

    Args:
        candidate: The pair and the one in service.
        free_bytes: What the server may have of the host's memory beside what it has; asked where it counts.

    Raises:
        CanaryError: An engine lacks its description.
        ServerStartError: The run directory does not say how its server was started.
    """
    pair, stable = candidate.pair, candidate.stable
    return (
        _is_another_pair(pair, stable),
        _is_of_the_runtime(pair, stable),
        _can_be_loaded_now(candidate),
        _has_the_tokenizer(pair, stable),
        _ends_texts_alike(pair, stable),
        _is_whole(pair),
        _takes_the_draft_length(pair),
        _has_room(candidate, free_bytes),
    )


def require(checks: tuple[Check, ...]) -> None:
    """Refuse a candidate that does not meet one of them.

    Raises:
        CanaryError: With the first one that is not met; nothing was loaded.
    """
    for check in checks:
        if not check.is_met:
            raise CanaryError(
                f"the candidate is refused before it is loaded: {check.name}",
                values=json.dumps(check.evidence),
                limit=check.limit,
                remedy=check.remedy,
            )


def _is_another_pair(pair: Pair, stable: Pair) -> Check:
    override = _draft_length_in_force(pair)
    own = {side: pair_.num_draft_tokens for side, pair_ in (("candidate", pair), ("stable", stable))}
    engines = (pair.draft_fingerprint, pair.target_fingerprint)
    same_engines = engines == (stable.draft_fingerprint, stable.target_fingerprint)
    # A length that people have set counts for both pairs, whatever their recipes say.
    only_length = (
        same_engines
        and own["candidate"] != own["stable"]
        and pair.max_draft_len == stable.max_draft_len
        and override is not None
    )
    return Check(
        "it is another pair than the one in service",
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


def _is_of_the_runtime(pair: Pair, stable: Pair) -> Check:
    return Check(
        "it is of the server's runtime",
        pair.runtime == stable.runtime,
        {"candidate": pair.runtime, "stable": stable.runtime},
        "one runtime per server",
        f"give RUNTIME={stable.runtime}",
    )


def _can_be_loaded_now(candidate: CandidatePair) -> Check:
    launch = Launch.read(candidate.run_directory)
    # Ranks that MPI has started hold the engines that they were started with.
    return Check(
        "the server can load engines while it runs",
        launch.runtime == "embedded" or launch.spawns_workers,
        {"runtime": launch.runtime, "mode": launch.mode, "spawns_workers": launch.spawns_workers},
        "the embedded runtime, or TensorRT-LLM's orchestrator that starts its workers itself",
        "roll out with two servers and their gateway instead (make deployment)",
    )


def _has_the_tokenizer(pair: Pair, stable: Pair) -> Check:
    engines = {"candidate draft": (pair, "draft"), "candidate target": (pair, "target")}
    engines["stable target"] = (stable, "target")
    manifests = {name: side.manifest(role) for name, (side, role) in engines.items()}
    identities = {name: each.get("tokenizer_identity_sha256") for name, each in manifests.items()}
    # The identity was taken from a file; an engine with another file in its place is not what it says.
    exchanged = [
        name
        for name, each in manifests.items()
        if each.get("files", {}).get("tokenizer.json", {}).get("sha256") != each.get("tokenizer_sha256")
    ]
    known = set(identities.values())
    return Check(
        "it has the tokenizer of the pair in service",
        len(known) == 1 and None not in known and not exchanged,
        {"tokenizer_identity_sha256": identities, "exchanged": exchanged},
        "the same tokens for the same text, in both engines and in the target in service",
        "build the pair from checkpoints with that tokenizer",
    )


def _ends_texts_alike(pair: Pair, stable: Pair) -> Check:
    found = {
        name: side.manifest("target").get("end_ids")
        for name, side in (("candidate", pair), ("stable", stable))
    }
    return Check(
        "its texts end at the same tokens",
        found["candidate"] is not None and found["candidate"] == found["stable"],
        found,
        "the same end_ids in the manifests of both targets",
        "build the target from a checkpoint with the same end tokens",
    )


def _is_whole(pair: Pair) -> Check:
    damaged = [path for role in _ROLES for path in _damaged(pair, role)]
    return Check(
        "its engines are whole",
        not damaged,
        {"missing_or_changed": damaged},
        "every file as the manifest has it",
        "delete the engine's directory and run 'make engines'",
    )


def _damaged(pair: Pair, role: str) -> Iterator[str]:
    directory = Path(getattr(pair, f"{role}_engine_dir"))
    for name, entry in pair.manifest(role).get("files", {}).items():
        if _sha256(directory / name) != entry.get("sha256"):
            yield str(directory / name)


def _sha256(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _takes_the_draft_length(pair: Pair) -> Check:
    override = _draft_length_in_force(pair)
    length = (override or {}).get("num_draft_tokens")
    return Check(
        "it takes the draft length that people have set",
        length is None or length <= pair.max_draft_len,
        {"draft_length_file": override, "max_draft_len": pair.max_draft_len},
        "at most the candidate's max_draft_len: a model that finds more does not load",
        "run 'make draft-length' with a smaller number",
    )


def _draft_length_in_force(pair: Pair) -> dict[str, Any] | None:
    """What ``make draft-length`` wrote; None if nothing was set, or not so that it could be followed."""
    try:
        document = json.loads(Path(pair.draft_length_file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _has_room(candidate: CandidatePair, free_bytes: Callable[[], int]) -> Check:
    recipes_own = Pair.read(candidate.run_directory)
    loaded = {each.socket: each for each in (recipes_own, candidate.stable)}
    memory = memory_of(candidate.pair, tuple(loaded.values()), free_bytes)
    return Check(
        "there is memory for it beside the pair in service",
        all(each.needed <= each.available for each in memory),
        {each.device: {"needed": each.needed, "available": each.available} for each in memory},
        "what loading it takes, at most what is free",
        "lower kv_cache sizes of the recipes, free memory, or roll out on a larger machine",
    )
