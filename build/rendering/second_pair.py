"""Add a second pair to a rendered repository, next to the recipe's own.

Models that both pairs share are not rendered again. The others get a hash of the pair in their names, so that
a running server of the repository is not affected: it loads these models on request, not at its start. Each
model is put in place atomically, the loop last.

With TensorRT-LLM, rendering is tested, but such a pair has never been loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from build.digests import known_engine
from build.recipe import Recipe
from build.rendering.kv_blocks import with_kv_blocks
from build.rendering.rendered_pair import PairNames, RenderedPair
from build.rendering.templates import TEMPLATES, render_model
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.atomic_file import put_in_place, scratch_beside
from pipelines.available_resources import available_bytes
from pipelines.deploy.triton.pair_record import PairRecord, short_hash
from pipelines.engine_memory import PROCESS_BYTES
from pipelines.errors import RepositoryError
from pipelines.manifest import engine_digest, read_manifest
from pipelines.socket_path import check_socket_path


def render_second_pair(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run_directory: Path,
    memory: MemoryPlan | None = None,
    free: Callable[[], float] = available_bytes,
) -> PairRecord:
    """Add a pair to a rendered repository.

    Args:
        recipe: Recipe of the new pair.
        draft_engine: Engine directory of its draft.
        target_engine: Engine directory of its target.
        run_directory: ``.run/<recipe of the repository>``, which contains the repository.
        memory: How the new pair's engines share their GPUs; required on TensorRT-LLM.
        free: Returns the bytes that the repository's server may still use, on the embedded runtime.

    Returns:
        The new pair; the repository's own if they are the same.

    Raises:
        EngineLoadError: A file of an engine is missing or has changed since the build.
        RecipeError: The memory does not hold the pair.
        RepositoryError: The repository does not exist or has another runtime, or the pair cannot be added.
    """
    repository = run_directory / "model_repository"
    served = PairRecord.read(repository / PairNames().speculative)
    _check_runtime(recipe, served)
    engines = known_engine(draft_engine), known_engine(target_engine)
    pair = RenderedPair(recipe, *engines, run_directory, memory)
    if pair.fingerprint == served.fingerprint:
        return served
    suffix = f"_{short_hash(pair.fingerprint)}"
    # On the embedded runtime, the loop's process holds both engines, and answers by the target alone, too.
    holds_both = recipe.runtime == "embedded"
    has_own_draft = holds_both or pair.engine_fingerprint("draft") != served.draft_fingerprint
    has_own_target = holds_both or pair.engine_fingerprint("target") != served.target_fingerprint
    standard = PairNames()
    names = PairNames(
        speculative=standard.speculative + suffix,
        draft=standard.draft + suffix * has_own_draft,
        target=standard.target + suffix * has_own_target,
        target_alone=standard.target_alone + suffix * has_own_target,
    )
    models = _needed(recipe.runtime, names, has_own_draft=has_own_draft, has_own_target=has_own_target)
    there = repository / names.speculative
    pair = with_kv_blocks(replace(pair, names=names), there, free, PROCESS_BYTES)
    for socket in (pair.values["speculative_socket"], pair.values["target_socket"]):
        check_socket_path(socket, RepositoryError)
    loads_at_start = there.exists() and PairRecord.read(there).loads_at_start  # it was promoted earlier
    record = pair.record(list(models), loads_at_start=loads_at_start)
    with scratch_beside(repository) as scratch:
        for name, template in models.items():
            render_model(TEMPLATES / template, recipe.runtime, pair.values, scratch / name)
            record.write(scratch / name)
        for name in models:
            put_in_place(scratch / name, repository / name)
    return record


def models_of_other_pairs(own: RenderedPair) -> list[Path]:
    """Return the models of other pairs, which are kept when the recipe's own pair is rendered again.

    Args:
        own: The recipe's own pair; its run directory may have no repository.

    Returns:
        Folders of the models.

    Raises:
        RepositoryError: A pair that a server loads at its start could not be loaded any more.
    """
    repository = own.run / "model_repository"
    kept = []
    for folder in sorted(repository.glob(f"{PairNames().speculative}_*")):
        pair = PairRecord.read(folder)
        missing = _missing(pair, own)
        if not missing:
            kept += [repository / model for model in pair.models]
        elif pair.loads_at_start:
            raise RepositoryError(
                "a promoted pair cannot be loaded any more",
                values=f"{folder}, recipe {pair.name}: {'; '.join(missing)}",
                limit="its engines and runtime must be those at its promotion",
                remedy=f"rebuild them (draftproof engines --recipe {pair.name}), or return to the recipe's "
                f"own pair: remove {repository} and {own.run / 'arms.json'}",
            )
    return kept


def _missing(pair: PairRecord, own: RenderedPair) -> list[str]:
    """Return what keeps a pair from being served with the recipe's own."""
    runtime = own.recipe.runtime
    if pair.runtime != runtime:
        return [f"its runtime is {pair.runtime}, the recipe's is {runtime}"]
    engines = {
        "draft": (Path(pair.draft_engine_dir), pair.draft_fingerprint, pair.draft_digest),
        "target": (Path(pair.target_engine_dir), pair.target_fingerprint, pair.target_digest),
    }
    missing = [
        f"{path} {'now holds another engine' if path.is_dir() else 'does not exist'}"
        for path, _, digest in engines.values()
        if _digest(path) != digest
    ]
    for role in () if runtime == "embedded" else ("draft", "target"):
        has_own = any(model.startswith(f"{role}_") for model in pair.models)
        if not has_own and engines[role][1] != own.engine_fingerprint(role):
            missing.append(f"it shares the {role} of the recipe's own pair, which has changed")
    return missing


def _digest(engine: Path) -> str | None:
    manifest = read_manifest(engine)
    return None if manifest is None else engine_digest(manifest)


def _needed(runtime: str, names: PairNames, *, has_own_draft: bool, has_own_target: bool) -> dict[str, str]:
    """Return model -> template in loading order, without engines that both pairs share."""
    models = {}
    if runtime != "embedded" and has_own_draft:
        models[names.draft] = "draft"
    if runtime != "embedded" and has_own_target:
        models[names.target] = "target"
        models[names.target_alone] = "target_alone"
    return {**models, names.speculative: "speculative"}


def _check_runtime(recipe: Recipe, served: PairRecord) -> None:
    if recipe.runtime != served.runtime:
        raise RepositoryError(
            "both pairs of a repository must have the same runtime",
            values=f"recipe {recipe.name}: {recipe.runtime}; repository: {served.runtime}",
            limit="a server has one runtime",
            remedy=f"set --runtime {served.runtime}, or serve the recipe on a server of its own",
        )
