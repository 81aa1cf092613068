"""Set the draft length of a server: it reads the file in its run directory when that changes."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.atomic_file import write_whole
from pipelines.deploy.triton.models import rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.errors import InvalidRequestError

ADAPTIVE = "adaptive"


def set_draft_length(run_directory: Path, wanted: str) -> Path:
    """Write the setting; it applies from the next request on, and after a restart.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.
        wanted: ``adaptive``, or a number of draft tokens; 0 switches speculation off.

    Returns:
        Path of the file.

    Raises:
        InvalidRequestError: The value is invalid, or greater than ``max_draft_len``.
        RepositoryError: There is no rendered repository.
    """
    limit = int(rendered_parameters(run_directory, LOOP)["max_draft_len"])
    if wanted not in (ADAPTIVE, *map(str, range(limit + 1))):
        raise InvalidRequestError(
            f"num_draft_tokens={wanted!r} is neither '{ADAPTIVE}' nor 0 to max_draft_len={limit}",
            "use one of these; 0 switches speculation off",
        )
    path = run_directory / "draft_length.json"
    document = {"num_draft_tokens": None if wanted == ADAPTIVE else int(wanted)}
    write_whole(path, json.dumps(document) + "\n")
    return path
