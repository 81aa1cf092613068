"""Choose the blocks of a pair's KV caches, once for each pair of a repository."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from build.command_line import print_line
from build.memory import SERVER_BYTES, EngineMemory, plan_memory
from build.recipe import REPOSITORY_ROOT
from build.rendering.rendered_pair import RenderedPair
from pipelines.deploy.triton.pair_record import PAIR_FILE, PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import RepositoryError
from pipelines.socket_path import is_listening


def with_kv_blocks(
    pair: RenderedPair, rendered: Path, free: Callable[[], float], process_bytes: int = SERVER_BYTES
) -> RenderedPair:
    """Return the pair with the blocks of its recipe, or those that the memory holds.

    A pair that is rendered already keeps its blocks, since its own server may use the memory at this moment;
    remove the folder of its loop to plan anew. A plan is printed. TensorRT-LLM sizes its caches itself.

    Args:
        pair: The pair.
        rendered: Folder of the pair's loop in the repository; it need not exist.
        free: Returns the bytes that the pair may use; called if the memory decides.
        process_bytes: See ``plan_memory``.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
        RecipeError: The memory does not hold the pair.
    """
    recipe = pair.recipe
    if recipe.runtime != "embedded":
        return pair
    given = {"draft": recipe.draft.kv_cache.num_blocks, "target": recipe.target.kv_cache.num_blocks}
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
        EngineMemory.of_engine(pair.draft.directory, given["draft"]),
        recipe.serving,
        free(),
        process_bytes,
    )
    for line in plan.lines():
        print_line(line)
    return replace(pair, num_kv_blocks=plan.num_blocks)


def returned_bytes(repository: Path, own: str) -> int:
    """Return how much more memory a pair may use at its server's next start than is free now.

    Promoted pairs load beside it. What a running server holds is not free now, but will be.

    Args:
        repository: The model repository; it need not exist.
        own: Name of the pair's own loop.

    Returns:
        Bytes; negative if no server runs and there are promoted pairs.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
        RepositoryError: Another version of Draftproof wrote a pair.
    """
    pairs = [PairRecord.read(path.parent) for path in repository.glob(f"{own}_*/{PAIR_FILE}")]
    promoted = [pair for pair in pairs if pair.loads_at_start and pair.runtime == "embedded"]
    loaded = list(promoted)
    with suppress(RepositoryError):  # there is none, or one of another version
        loaded.append(PairRecord.read(repository / own))
    running = [pair for pair in loaded if is_listening(REPOSITORY_ROOT / pair.socket)]
    returned = sum(map(_bytes_of, running)) + (SERVER_BYTES if running else 0)
    return returned - sum(map(_bytes_of, promoted))


def _bytes_of(pair: PairRecord) -> int:
    engines = Path(pair.draft_engine_dir), Path(pair.target_engine_dir)
    return pair_bytes(*engines, pair.num_kv_blocks, pair.max_batch_size)
