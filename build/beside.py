"""Adds a recipe's pair to a rendered repository: the models of both stand side by side.

Only what the new pair needs for itself is rendered, under names with a hash of the pair, so that a server
of the repository goes on undisturbed; it loads these models when it is told to, not when it starts. Each
model is put in place as a whole, the loop last.

Nothing here was tried with engines of TensorRT-LLM: there it is rendered only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.manifest import verify_manifest
from build.memory_plan import MemoryPlan
from build.pair_record import SHORT_HASH, PairRecord, engine_fingerprint, pair_fingerprint
from build.recipe import Recipe
from build.template_values import PairNames, template_values
from build.templates import TEMPLATES, render_model
from build.whole import put_in_place, scratch_beside
from pipelines.errors import RepositoryError

MAX_SOCKET_BYTES = 107  # of a path in sockaddr_un, less its closing zero (man 7 unix)


def render_beside(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run_directory: Path,
    memory: MemoryPlan | None = None,
) -> PairRecord:
    """Render a pair beside the one that a repository was rendered for.

    Args:
        recipe: Of the new pair.
        draft_engine: Engine directory of its draft.
        target_engine: Engine directory of its target.
        run_directory: ``.run/<recipe of the pair in service>``, with its rendered repository.
        memory: How the new pair's engines share their GPUs; needed on TensorRT-LLM alone.

    Returns:
        What was rendered; the pair of the repository itself, if it is no other.

    Raises:
        EngineLoadError: A file of an engine is missing or was changed since it was built.
        RepositoryError: There is no such repository, it is of another runtime, or the pair cannot stand
            beside another one.
    """
    repository = run_directory / "model_repository"
    served = PairRecord.read(repository / PairNames().speculative)
    _check_runtime(recipe, served)
    draft, target = verify_manifest(draft_engine), verify_manifest(target_engine)
    fingerprint = pair_fingerprint(recipe, draft, target)
    if fingerprint == served.fingerprint:
        return served
    suffix = f"_{fingerprint[:SHORT_HASH]}"
    has_own_draft = engine_fingerprint(draft) != served.draft_fingerprint
    has_own_target = engine_fingerprint(target) != served.target_fingerprint
    standard = PairNames()
    names = PairNames(
        speculative=standard.speculative + suffix,
        draft=standard.draft + suffix * has_own_draft,
        target=standard.target + suffix * has_own_target,
        target_alone=standard.target_alone + suffix * has_own_target,
    )
    models = _needed(recipe.runtime, names, has_own_draft=has_own_draft, has_own_target=has_own_target)
    values = template_values(
        recipe, draft_engine.resolve(), target_engine.resolve(), run_directory, memory, names
    )
    for socket in (values["speculative_socket"], values["target_socket"]):
        _check_socket(socket)
    there = repository / names.speculative
    loads_at_start = there.exists() and PairRecord.read(there).loads_at_start  # promoted before
    record = PairRecord.of(
        recipe, draft, target, values, names, list(models), loads_at_start=loads_at_start, memory=memory
    )
    with scratch_beside(repository) as scratch:
        for name, template in models.items():
            render_model(TEMPLATES / template, recipe.runtime, values, scratch / name)
            record.write(scratch / name)
        for name in models:
            put_in_place(scratch / name, repository / name)
    return record


def models_beside(
    run_directory: Path, runtime: str, draft: Mapping[str, Any], target: Mapping[str, Any]
) -> list[Path]:
    """Models of other pairs, which stay when the recipe's own pair is rendered anew.

    Args:
        run_directory: With or without a repository.
        runtime: Of the recipe.
        draft: Manifest of the engine that the recipe's own pair will have.
        target: Likewise.

    Returns:
        Their folders.

    Raises:
        RepositoryError: A pair that servers load at their start could not be loaded any more.
    """
    repository = run_directory / "model_repository"
    own = {"draft": engine_fingerprint(draft), "target": engine_fingerprint(target)}
    kept = []
    for folder in sorted(repository.glob(f"{PairNames().speculative}_*")):
        pair = PairRecord.read(folder)
        missing = _missing(pair, runtime, own)
        if not missing:
            kept += [repository / model for model in pair.models]
        elif pair.loads_at_start:
            raise RepositoryError(
                "a pair that was promoted cannot be loaded any more",
                values=f"{folder}, recipe {pair.name}: {'; '.join(missing)}",
                limit="engines and a runtime as at its promotion",
                remedy=f"bring them back (make engines RECIPE={pair.name}), or let the recipe's own pair "
                f"answer: remove {repository} and {run_directory / 'arms.json'}",
            )
    return kept


def _missing(pair: PairRecord, runtime: str, own: Mapping[str, str]) -> list[str]:
    """What keeps a pair from standing beside the recipe's own, whose engines have these fingerprints."""
    if pair.runtime != runtime:
        return [f"it is of {pair.runtime}, the recipe of {runtime}"]
    engines = {
        "draft": (pair.draft_engine_dir, pair.draft_fingerprint),
        "target": (pair.target_engine_dir, pair.target_fingerprint),
    }
    missing = [f"{path} is gone" for path, _ in engines.values() if not Path(path).is_dir()]
    shared = ["target"] if runtime == "embedded" else ["draft", "target"]
    for role in shared:
        has_own = any(model.startswith(f"{role}_") for model in pair.models)
        if not has_own and engines[role][1] != own[role]:
            missing.append(f"it shares the {role} with the recipe's own pair, which has another one now")
    return missing


def _needed(runtime: str, names: PairNames, *, has_own_draft: bool, has_own_target: bool) -> dict[str, str]:
    """Model -> template, in the order of loading. An engine that both pairs have is loaded once.

    The embedded loop holds its engines itself; only its target alone is a model of its own.
    """
    models = {}
    if runtime != "embedded" and has_own_draft:
        models[names.draft] = "draft"
    if has_own_target:
        models[names.target] = "target"
        if runtime != "embedded":
            models[names.target_alone] = "target_alone"
    return {**models, names.speculative: "speculative"}


def _check_runtime(recipe: Recipe, served: PairRecord) -> None:
    if recipe.runtime != served.runtime:
        raise RepositoryError(
            "a pair of another runtime cannot stand beside the one in service",
            values=f"recipe {recipe.name}: {recipe.runtime}, repository: {served.runtime}",
            limit="one runtime per server",
            remedy=f"give RUNTIME={served.runtime}, or serve the recipe by itself",
        )
    if recipe.runtime == "embedded" and recipe.serving.engine_access != "in_process":
        raise RepositoryError(
            "a pair whose engines are reached through BLS cannot stand beside another one",
            values=f"recipe {recipe.name}: engine_access={recipe.serving.engine_access}",
            limit="engine_access: in_process",
            remedy="change the recipe; bls is not for service",
        )


def _check_socket(path: str) -> None:
    num_bytes = len(path.encode())
    if num_bytes > MAX_SOCKET_BYTES:
        raise RepositoryError(
            "the path of a socket is too long",
            values=f"{num_bytes} bytes: {path}",
            limit=f"{MAX_SOCKET_BYTES} bytes",
            remedy="use a run directory inside the checkout, or with a shorter path",
        )
