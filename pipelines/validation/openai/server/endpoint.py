"""Say where an OpenAI-compatible server is, what each request to it carries, and read its API key.

Keys come from a file or from the environment, never from the command line, which other users of the machine
and reports can see.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelines.errors import InvalidRequestError

CANDIDATE_KEY = "DRAFTPROOF_AGAINST_KEY"
CONTROL_KEY = "DRAFTPROOF_CONTROL_KEY"


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes:
        url: Address without the path ``/v1``.
        model: Name of the model; "" for the only one that the server lists.
        key: API key; "" for none.
        body: Fields added to each request, such as a switch of speculation.
    """

    url: str
    model: str = ""
    key: str = field(default="", repr=False)
    body: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, model: str, key: str, body: Mapping[str, Any]) -> Endpoint:
        """Make an endpoint of what a user gave.

        Raises:
            InvalidRequestError: The address is invalid, or has a user name, a password or a query.
        """
        parts = urlsplit(url)
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
            raise InvalidRequestError(
                f"{parts.scheme or '(no scheme)'}://{parts.hostname or '(no host)'} is not the address of an "
                "OpenAI-compatible server, which is http://host:port or https://host without user name, "
                "password and query",
                "give the key in a file or in the environment",
            )
        return cls(url.rstrip("/").removesuffix("/v1"), model, key, body)


def read_key(file: Path | None, variable: str) -> str:
    """Return the key in a file, else the one in an environment variable, else "".

    Raises:
        InvalidRequestError: The file cannot be read, or the key is no single line of ASCII.
    """
    source, key = variable, os.environ.get(variable, "")
    if file is not None:
        source = str(file)
        try:
            key = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidRequestError(
                f"the file of an API key cannot be read: {file}: {reason}", "name another file"
            ) from None
    key = key.strip()
    if (file is not None and not key) or not key.isascii() or any(not c.isprintable() for c in key):
        raise InvalidRequestError(
            f"the API key in {source} is not one line of printable ASCII characters",
            "write the key alone into the file or the variable",
        )
    return key
