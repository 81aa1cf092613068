"""Add a second pair to a rendered repository, next to the recipe's own.

Its loop, whose process holds both engines, has a hash of the pair in its name, so that a running server of
the repository is not affected: it loads the model on request, not at its start. All other models are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from build.digests import known_engine
from build.recipe import Recipe
from build.rendering.kv_blocks import with_kv_blocks
from build.rendering.rendered_pair import RenderedPair
from build.rendering.templates import TEMPLATES, render_model
from pipelines.atomic_file import put_in_place, scratch_beside
from pipelines.available_resources import available_bytes
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.engine_memory import PROCESS_BYTES
from pipelines.errors import RepositoryError
from pipelines.manifest import engine_digest, read_manifest
from pipelines.socket_path import check_socket_path

_HASH_DIGITS = 8  # few, as the path of a socket is limited


def render_second_pair(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run_directory: Path,
    free: Callable[[], float] = available_bytes,
) -> PairRecord:
    """Add a pair to a rendered repository, both on the embedded runtime.

    Args:
        recipe: Recipe of the new pair.
        draft_engine: Engine directory of its draft.
        target_engine: Engine directory of its target.
        run_directory: ``.run/<recipe of the repository>``, which contains the repository.
        free: Returns the bytes that the repository's server may still use.

    Returns:
        The new pair; the repository's own if they are the same.

    Raises:
        EngineLoadError: A file of an engine is missing or has changed since the build.
        RecipeError: The memory does not hold the pair.
        RepositoryError: The repository does not exist or has another runtime, or the pair cannot be added.
    """
    repository = run_directory / "model_repository"
    served = pair_beside(recipe, run_directory)
    engines = known_engine(draft_engine), known_engine(target_engine)
    pair = RenderedPair(recipe, *engines, run_directory)
    if pair.fingerprint == served.fingerprint:
        return served
    pair = replace(pair, suffix=f"_{pair.fingerprint[:_HASH_DIGITS]}")
    there = repository / pair.loop
    pair = with_kv_blocks(pair, there, free, PROCESS_BYTES)
    for socket in (pair.values["speculative_socket"], pair.values["target_socket"]):
        check_socket_path(socket, RepositoryError)
    loads_at_start = there.exists() and PairRecord.read(there).loads_at_start  # it was promoted earlier
    record = pair.record(loads_at_start=loads_at_start)
    with scratch_beside(repository) as scratch:
        render_model(TEMPLATES / LOOP, recipe.runtime, pair.values, scratch / pair.loop)
        record.write(scratch / pair.loop)
        put_in_place(scratch / pair.loop, there)
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
    for folder in sorted(repository.glob(f"{LOOP}_*")):
        pair = PairRecord.read(folder)
        missing = _missing(pair, own)
        if not missing:
            kept.append(folder)
        elif pair.loads_at_start:
            raise RepositoryError(
                f"a promoted pair cannot be loaded any more: {folder}, recipe {pair.name}: "
                f"{'; '.join(missing)}",
                f"rebuild its engines (draftproof engines --recipe {pair.name}), or return to the recipe's "
                f"own pair: remove {repository} and {own.run / 'arms.json'}",
            )
    return kept


def _missing(pair: PairRecord, own: RenderedPair) -> list[str]:
    """Return what keeps a pair from being served with the recipe's own."""
    runtime = own.recipe.runtime
    if pair.runtime != runtime:
        return [f"its runtime is {pair.runtime}, the recipe's is {runtime}"]
    engines = (
        (Path(pair.draft_engine_dir), pair.draft_digest),
        (Path(pair.target_engine_dir), pair.target_digest),
    )
    return [
        f"{path} {'now holds another engine' if path.is_dir() else 'does not exist'}"
        for path, digest in engines
        if _digest(path) != digest
    ]


def _digest(engine: Path) -> str | None:
    manifest = read_manifest(engine)
    return None if manifest is None else engine_digest(manifest)


def pair_beside(recipe: Recipe, run_directory: Path) -> PairRecord:
    """Return a repository's own pair, beside which a recipe can be served; see ``render_second_pair``.

    Raises:
        RepositoryError: The repository does not exist or has another runtime.
    """
    served = PairRecord.read(run_directory / "model_repository" / LOOP)
    if {recipe.runtime, served.runtime} != {"embedded"}:
        raise RepositoryError(
            f"recipe {recipe.name} has runtime {recipe.runtime} and the repository {served.runtime}: only "
            "the embedded runtime serves two pairs in one server",
            "serve the recipe on a server of its own, and roll out between two groups of servers",
        )
    return served
