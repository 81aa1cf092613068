"""The server's draft length: set by the recipe, changed by people while it runs."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import DraftproofError, InvalidRequestError, RepositoryError
from pipelines.serving.parameters import ModelParameters

_LOG = logging.getLogger(__name__)

_ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class DraftLengthSetting:
    """What holds for requests that do not say.

    Attributes:
        num_draft_tokens: Per round; 0 for no speculation; None to follow the moment.
        max_draft_len: Ceiling for all requests.
    """

    num_draft_tokens: int | None
    max_draft_len: int

    @classmethod
    def of_recipe(cls, parameters: ModelParameters) -> DraftLengthSetting:
        """What the recipe says.

        Raises:
            RepositoryError: It makes no sense.
        """
        max_draft_len = parameters.integer("max_draft_len")
        wanted = parameters.text("num_draft_tokens")
        if max_draft_len < 1 or wanted not in (_ADAPTIVE, *map(str, range(max_draft_len + 1))):
            raise RepositoryError(
                "the draft length of the recipe makes no sense",
                values=f"num_draft_tokens={wanted!r}, max_draft_len={max_draft_len}",
                limit=f"'{_ADAPTIVE}' or 0 to max_draft_len, and that at least 1",
                remedy="correct the recipe and run 'make repository'",
            )
        return cls(None if wanted == _ADAPTIVE else int(wanted), max_draft_len)

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

    Raises:
        InvalidRequestError: The file makes no sense from the start.
    """

    def __init__(self, initial: DraftLengthSetting, path: Path) -> None:
        self._initial = initial
        self._path = path
        self._seen = self._stamp()
        self._setting = self._parse() if self._seen else initial

    def read(self) -> DraftLengthSetting:
        """What holds now. A file that makes no sense is named in the log once, and not followed."""
        seen = self._stamp()
        if seen != self._seen:
            self._seen = seen
            try:
                self._setting = self._initial if seen is None else self._parse()
                _LOG.warning("draft length set to %s", self._setting)
            except DraftproofError as error:
                _LOG.error("the draft length stays as it was: %s", error)
        return self._setting

    def _stamp(self) -> tuple[int, int] | None:
        """Modification time and size of the file; None if it is not there."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _parse(self) -> DraftLengthSetting:
        ceiling = self._initial.max_draft_len
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            unknown = set(document) - {"num_draft_tokens"}
            length = document["num_draft_tokens"]
            if unknown or isinstance(length, bool) or not isinstance(length, int | None):
                raise ValueError(f"unknown or of the wrong type: {document}")
            if length is not None and not 0 <= length <= ceiling:
                raise ValueError(f"out of range: {document}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                "the file with the draft length makes no sense",
                values=f"{self._path}: {error!r}",
                limit=f'{{"num_draft_tokens": null}}, or 0 to max_draft_len={ceiling}',
                remedy="write it with 'make draft-length', or remove it for the recipe's draft length",
            ) from error
        return DraftLengthSetting(length, ceiling)
