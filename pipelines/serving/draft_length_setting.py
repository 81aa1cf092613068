"""The server's draft length: set by the recipe, changed by people while it runs."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import DraftproofError, InvalidRequestError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftLengthSetting:
    """What holds for requests that do not say.

    Attributes:
        num_draft_tokens: Per round; 0 for no speculation; None to follow the moment.
        max_draft_len: Ceiling for all requests.
    """

    num_draft_tokens: int | None
    max_draft_len: int

    def check(self, num_draft_tokens: int | None) -> None:
        """Refuse a draft length above the ceiling.

        Raises:
            InvalidRequestError: It is outside 0..max_draft_len.
        """
        if num_draft_tokens is None or 0 <= num_draft_tokens <= self.max_draft_len:
            return
        raise InvalidRequestError(
            "num_draft_tokens is out of range",
            values=f"num_draft_tokens={num_draft_tokens}",
            limit=f"0 to max_draft_len={self.max_draft_len}",
            remedy="send 0 to switch speculation off, or leave it out for the server's default",
        )


class LiveDraftLength:
    """Reads the setting from a file that may change, and keeps the last one that made sense.

    Args:
        initial: Of the recipe; its ceiling is what the engines were made for.
        path: JSON such as ``{"num_draft_tokens": 0}``; it need not be there.
    """

    def __init__(self, initial: DraftLengthSetting, path: Path) -> None:
        self._initial = initial
        self._path = path
        self._setting = initial
        self._seen: tuple[int, int] | None = None  # modification time and size

    def read(self) -> DraftLengthSetting:
        """What holds now. A file that makes no sense is named in the log once, and not followed."""
        try:
            status = self._path.stat()
        except OSError:
            seen = None
        else:
            seen = (status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._seen = seen
            try:
                self._setting = self._initial if seen is None else self._parse()
                _LOG.warning("draft length set to %s", self._setting)
            except DraftproofError as error:
                _LOG.error("the draft length stays as it was: %s", error)
        return self._setting

    def _parse(self) -> DraftLengthSetting:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            unknown = set(document) - {"num_draft_tokens"}
            length = document["num_draft_tokens"]
            if unknown or isinstance(length, bool) or not isinstance(length, int | None):
                raise ValueError(f"unknown or of the wrong type: {document}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                "the file with the draft length makes no sense",
                values=f"{self._path}: {error!r}",
                limit='{"num_draft_tokens": null} or a whole number',
                remedy="write it with 'make draft-length'",
            ) from error
        self._initial.check(length)
        return DraftLengthSetting(length, self._initial.max_draft_len)
