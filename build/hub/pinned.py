"""Find what a recipe names on the hub.

A recipe is pinned when each of its checkpoints on the hub has a commit, so that the files never change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from build.hub.checkpoint_id import HubCheckpoint
from build.recipe import Recipe
from pipelines.errors import CheckpointError

if TYPE_CHECKING:
    from build.hub.repository import Repository


def pin_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe whose checkpoints have commits; their settings and tokenizers are on this machine.

    Raises:
        CheckpointError: A repository cannot be read, or is not a checkpoint.
    """
    for role, named in _on_hub(recipe):
        pinned: Any = replace(recipe.engines[role], checkpoint=str(opened(named).checkpoint))
        recipe = replace(recipe, **{role: pinned})
    return recipe


def repositories(recipe: Recipe) -> list[Repository]:
    """Return the repositories of the hub that a recipe names; raises CheckpointError."""
    return [opened(named) for _, named in _on_hub(recipe)]


def _on_hub(recipe: Recipe) -> list[tuple[str, HubCheckpoint]]:
    named = [(role, HubCheckpoint.parse(engine.checkpoint)) for role, engine in recipe.engines.items()]
    return [(role, checkpoint) for role, checkpoint in named if checkpoint is not None]


def opened(checkpoint: HubCheckpoint) -> Repository:
    """Return a repository of the hub at the commit of its revision; raises CheckpointError."""
    # Imported here: only recipes that name the hub wait the half second that its library takes.
    try:
        from build.hub.repository import open_repository
    except ValueError as error:  # the library reads its settings when it is imported
        raise CheckpointError(
            f"a setting of the hub's library is malformed: {error}",
            "write whole seconds in HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT, or unset the one with "
            "this value",
        ) from None
    return open_repository(checkpoint)
