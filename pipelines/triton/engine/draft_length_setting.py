"""Reads the server's draft length, which the recipe sets and operators can change at run time."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from pipelines.atomic_file import version_of
from pipelines.errors import DraftproofError, InvalidRequestError, RepositoryError
from pipelines.triton.backend.parameters import ModelParameters

_LOG = logging.getLogger(__name__)

_ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class DraftLengthSetting:
    """The draft length of requests that do not specify one.

    Attributes:
        num_draft_tokens: Draft tokens per round; 0 for no speculation, None to adapt to acceptance and load.
        max_draft_len: Upper limit for all requests.
    """

    num_draft_tokens: int | None
    max_draft_len: int

    @classmethod
    def of_recipe(cls, parameters: ModelParameters) -> DraftLengthSetting:
        """Read the setting of the recipe.

        Raises:
            RepositoryError: The setting is invalid.
        """
        max_draft_len = parameters.integer("max_draft_len")
        wanted = parameters.text("num_draft_tokens")
        if max_draft_len < 1 or wanted not in (_ADAPTIVE, *map(str, range(max_draft_len + 1))):
            raise RepositoryError(
                "the draft length of the recipe is invalid",
                values=f"num_draft_tokens={wanted!r}, max_draft_len={max_draft_len}",
                limit=f"'{_ADAPTIVE}' or 0 to max_draft_len; max_draft_len at least 1",
                remedy="correct the recipe and run 'draftproof repository'",
            )
        return cls(None if wanted == _ADAPTIVE else int(wanted), max_draft_len)

    def check(self, num_draft_tokens: int | None) -> None:
        """Refuse a draft length that is out of range.

        Raises:
            InvalidRequestError: It is not between 0 and ``max_draft_len``.
        """
        if num_draft_tokens is None or 0 <= num_draft_tokens <= self.max_draft_len:
            return
        raise InvalidRequestError(
            "num_draft_tokens is out of range",
            values=f"num_draft_tokens={num_draft_tokens}",
            limit=f"0 to max_draft_len={self.max_draft_len}",
            remedy="send 0 to disable speculation, or leave it out for the server's default",
        )


class LiveDraftLength:
    """Follows the setting in a file and keeps the last valid one.

    Args:
        initial: The setting of the recipe; the engines were built for its upper limit.
        path: JSON such as ``{"num_draft_tokens": 0}``; it need not exist.

    Raises:
        InvalidRequestError: The file is invalid at the start.
    """

    def __init__(self, initial: DraftLengthSetting, path: Path) -> None:
        self._initial = initial
        self._path = path
        self._seen = version_of(self._path)
        self._setting = self._parse() if self._seen else initial

    def read(self) -> DraftLengthSetting:
        """Return the current setting; an invalid file is logged once and ignored."""
        seen = version_of(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._setting = self._initial if seen is None else self._parse()
                _LOG.warning("draft length set to %s", self._setting)
            except DraftproofError as error:
                _LOG.error("draft_length.json is invalid, so the draft length stays the same: %s", error)
        return self._setting

    def _parse(self) -> DraftLengthSetting:
        ceiling = self._initial.max_draft_len
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            unknown = set(document) - {"num_draft_tokens"}
            length = document["num_draft_tokens"]
            if unknown or isinstance(length, bool) or not isinstance(length, int | None):
                raise ValueError(f"unknown key or wrong type: {document}")
            if length is not None and not 0 <= length <= ceiling:
                raise ValueError(f"out of range: {document}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidRequestError(
                "draft_length.json is invalid",
                values=f"{self._path}: {error!r:.200}",
                limit=f'{{"num_draft_tokens": null}}, or 0 to max_draft_len={ceiling}',
                remedy="write it with 'draftproof draft-length', or delete it to use the recipe's draft "
                "length",
            ) from error
        return DraftLengthSetting(length, ceiling)
