"""Reads the parameters with which the model ``speculative`` of a run directory was rendered."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.errors import RepositoryError

_PARAMETER = re.compile(r'key: "(\w+)" value: { string_value: "([^"]*)" }')


def rendered_parameters(run_directory: Path) -> dict[str, str]:
    """Return the text of each parameter by name.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.

    Raises:
        RepositoryError: There is no rendered repository.
    """
    path = run_directory / "model_repository" / "speculative" / "config.pbtxt"
    try:
        return dict(_PARAMETER.findall(path.read_text(encoding="utf-8")))
    except OSError:
        raise RepositoryError(
            "there is no rendered repository",
            values=str(path),
            limit="needs a repository with the model 'speculative'",
            remedy="run 'make serve' first",
        ) from None
