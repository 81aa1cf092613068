"""The key of a server, with which operators may use internal models."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.errors import InvalidRequestError

KEY_HEADER = "draftproof-key"
"""Name of the header over HTTP and of the metadata over gRPC."""

FILE_VARIABLE = "DRAFTPROOF_KEY_FILE"
"""Environment variable with the path of the key file, ``<run directory>/key``."""


def key_of_environment() -> str:
    """Return the key in the file that ``DRAFTPROOF_KEY_FILE`` names; "" if it names none.

    Raises:
        InvalidRequestError: The file cannot be read.
    """
    path = os.environ.get(FILE_VARIABLE, "")
    try:
        return Path(path).read_text(encoding="ascii").strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            "the key of the server cannot be read",
            values=f"{FILE_VARIABLE}={path}: {error}",
            limit="the file 'key' in the server's run directory, which only its user may read",
            remedy="unset the variable, or run this as the server's user",
        ) from None
