"""Find what a recipe names on the hub.

A recipe is pinned when each of its checkpoints on the hub has a commit, so that the files never change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from build.hub.checkpoint_id import HubCheckpoint
from build.recipe import Recipe

if TYPE_CHECKING:
    from build.hub.repository import Repository


def pin_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe whose checkpoints have commits; their settings and tokenizers are on this machine.

    Raises:
        CheckpointError: A repository cannot be read, or is not a checkpoint.
    """
    for role, named in _on_hub(recipe):
        pinned = replace(getattr(recipe, role), checkpoint=str(_opened(named).checkpoint))
        recipe = replace(recipe, **{role: pinned})
    return recipe


def repositories(recipe: Recipe) -> list[Repository]:
    """Return the repositories of the hub that a recipe names; raises CheckpointError."""
    return [_opened(named) for _, named in _on_hub(recipe)]


def _on_hub(recipe: Recipe) -> list[tuple[str, HubCheckpoint]]:
    named = [(role, HubCheckpoint.parse(getattr(recipe, role).checkpoint)) for role in ("target", "draft")]
    return [(role, checkpoint) for role, checkpoint in named if checkpoint is not None]


def _opened(checkpoint: HubCheckpoint) -> Repository:
    # Imported here: only recipes that name the hub wait the half second that its library takes.
    from build.hub.repository import open_repository

    return open_repository(checkpoint)
