"""Give each checkpoint of a recipe that is on the hub its commit, so that its files never change."""

from __future__ import annotations

import dataclasses

from build.hub.checkpoint_id import HubCheckpoint
from build.hub.repository import Repository, open_repository
from build.recipe import Recipe

_ROLES = ("target", "draft")


def pin_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe whose checkpoints have commits; their settings and tokenizers are on this machine.

    Raises:
        CheckpointError: A repository cannot be read, or is not a checkpoint.
    """
    for role in _ROLES:
        engine = getattr(recipe, role)
        named = HubCheckpoint.parse(engine.checkpoint)
        if named is not None:
            pinned = dataclasses.replace(engine, checkpoint=str(open_repository(named).checkpoint))
            recipe = dataclasses.replace(recipe, **{role: pinned})
    return recipe


def repositories(recipe: Recipe) -> list[Repository]:
    """Return the repositories of the hub that a recipe names; raises CheckpointError."""
    named = (HubCheckpoint.parse(getattr(recipe, role).checkpoint) for role in _ROLES)
    return [open_repository(checkpoint) for checkpoint in named if checkpoint is not None]
