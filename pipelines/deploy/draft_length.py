"""Sets the draft length of a server while it runs, through the file that its loop reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pipelines.errors import InvalidRequestError, RepositoryError

ADAPTIVE = "adaptive"


def set_draft_length(run_directory: Path, wanted: str) -> Path:
    """Write the setting; the server follows it from the next request on, and a later server too.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.
        wanted: ``adaptive``, or a number of draft tokens; 0 for no speculation.

    Returns:
        The file.

    Raises:
        InvalidRequestError: It is neither, or above what the engines were made for.
        RepositoryError: There is no rendered repository.
    """
    limit = _max_draft_len(run_directory)
    if wanted not in (ADAPTIVE, *map(str, range(limit + 1))):
        raise InvalidRequestError(
            "the draft length cannot be set",
            values=f"num_draft_tokens={wanted!r}",
            limit=f"'{ADAPTIVE}', or 0 to max_draft_len={limit}",
            remedy="0 switches speculation off",
        )
    path = run_directory / "draft_length.json"
    staging = path.with_suffix(".tmp")
    document = {"num_draft_tokens": None if wanted == ADAPTIVE else int(wanted)}
    staging.write_text(json.dumps(document) + "\n", encoding="utf-8")
    staging.replace(path)
    return path


def _max_draft_len(run_directory: Path) -> int:
    path = run_directory / "model_repository" / "speculative" / "config.pbtxt"
    try:
        found = re.search(
            r'key: "max_draft_len" value: { string_value: "(\d+)" }', path.read_text(encoding="utf-8")
        )
    except OSError:
        found = None
    if found is None:
        raise RepositoryError(
            "there is no rendered repository whose draft length could be set",
            values=str(path),
            limit="a repository with the model 'speculative'",
            remedy="run 'make serve' first",
        )
    return int(found[1])
