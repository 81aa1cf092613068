"""Bring the checkpoints of a recipe onto this machine.

A directory is there already. Of a repository of the hub, the settings and the tokenizer come first: a pair
that cannot be served is refused before its weights are downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from build.files import Need, check_space
from build.hub.pinned import pin_recipe, repositories
from build.preflight import check_settings
from build.recipe import Recipe


def fetch_checkpoints(recipe: Recipe, report: Callable[[str], None], after: Sequence[Need] = ()) -> Recipe:
    """Download the checkpoints that are on the hub, unless they are on this machine.

    Args:
        recipe: The pair.
        report: Called with lines about the progress.
        after: What will be made of the weights. A disk that does not hold it is refused before they are
            downloaded; if they are here already, what is missing is known when it is made.

    Returns:
        The recipe, with the commit of each of these checkpoints.

    Raises:
        CheckpointError: A checkpoint is invalid or could not be downloaded.
        IncompatiblePairError: The two do not fit together; no weights have been downloaded.
        RecipeError: A disk does not hold them.
    """
    recipe = pin_recipe(recipe)
    found = repositories(recipe)
    if found and recipe.runtime == "embedded":
        check_settings(recipe)
    missing = [(repository, repository.missing_weights()) for repository in found]
    downloads = [
        Need(each.checkpoint.repo, each.checkpoint.cache, sum(blob.bytes_left for blob in blobs), "HF_HOME")
        for each, blobs in missing
    ]
    if any(need.size for need in downloads):
        check_space([*downloads, *after])
    for repository, blobs in missing:
        repository.download(blobs, report)
    return recipe
