"""Choose the blocks of a pair's KV caches, once for each pair of a run directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from build.command_line import print_line
from build.memory import NO_ENGINE, SERVER_BYTES, EngineMemory, plan_memory
from build.rendering.rendered_pair import RenderedPair
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import RepositoryError
from pipelines.places import CODE
from pipelines.socket_path import is_listening


def with_kv_blocks(pair: RenderedPair, rendered: Path, free: Callable[[], float]) -> RenderedPair:
    """Return the pair with the blocks of its recipe, or those that the memory holds.

    A pair that is rendered already keeps its blocks, since its own server may use the memory at this moment;
    remove the folder of its loop to plan anew. A plan is printed. TensorRT-LLM sizes its caches itself.

    Args:
        pair: The pair.
        rendered: Folder of the pair's loop in the repository; it need not exist.
        free: Returns the bytes that the pair may use; called if the memory decides.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
        RecipeError: The memory does not hold the pair.
    """
    recipe = pair.recipe
    if recipe.runtime != "embedded":
        return pair
    given = {role: engine.kv_cache.num_blocks for role, engine in recipe.engines.items()}
    chosen = {role: blocks for role, blocks in given.items() if blocks is not None}
    if len(chosen) == len(given):
        return replace(pair, num_kv_blocks=chosen)
    try:
        served = PairRecord.read(rendered)
    except RepositoryError:  # there is none, or one of another version
        served = None
    if served and served.fingerprint == pair.fingerprint:
        return replace(pair, num_kv_blocks=served.num_kv_blocks)
    plan = plan_memory(
        EngineMemory.of_engine(pair.target.directory, given["target"]),
        NO_ENGINE if pair.draft is None else EngineMemory.of_engine(pair.draft.directory, given["draft"]),
        recipe.serving,
        free(),
    )
    for line in plan.lines():
        print_line(line)
    return replace(pair, num_kv_blocks=plan.num_blocks)


def returned_bytes(rendered: Path) -> int:
    """Return what the running server of a repository holds: it is not free now, but at its next start.

    Args:
        rendered: Folder of the loop in the repository; it need not exist.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
    """
    try:
        served = PairRecord.read(rendered)
    except RepositoryError:  # there is none, or one of another version
        return 0
    if not is_listening(CODE / served.socket):
        return 0
    return SERVER_BYTES + pair_bytes(served.engine_dirs, served.num_kv_blocks, served.max_batch_size)
