"""Reads the server's draft length, which the recipe sets and operators can change at run time."""

from __future__ import annotations

import json
import logging

from pipelines.atomic_file import version_of
from pipelines.errors import InvalidRequestError
from pipelines.triton.backend.parameters import ModelParameters

_LOG = logging.getLogger(__name__)


class DraftLengthSetting:
    """The draft length of requests that do not specify one: the recipe's, or that of a file.

    The file holds JSON such as ``{"num_draft_tokens": 0}``; it need not exist.

    Attributes:
        max_draft_len: Upper limit for all requests, for which the engines were built.

    Args:
        parameters: Settings of the model.

    Raises:
        InvalidRequestError: The file is invalid at the start.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.max_draft_len = parameters.integer("max_draft_len")
        is_adaptive = parameters.text("num_draft_tokens") == "adaptive"
        self._of_recipe = None if is_adaptive else parameters.integer("num_draft_tokens")
        self._path = parameters.path("draft_length_file")
        self._seen = version_of(self._path)
        self._current = self._of_recipe if self._seen is None else self._parse()

    def read(self) -> int | None:
        """Return the draft tokens per round: 0 for no speculation, None to adapt to acceptance and load.

        An invalid file is logged once and ignored.
        """
        seen = version_of(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._current = self._of_recipe if seen is None else self._parse()
                _LOG.warning("num_draft_tokens is %s from now on", self._current)
            except InvalidRequestError as error:
                _LOG.error("the draft length stays the same: %s", error)
        return self._current

    def check(self, num_draft_tokens: int | None) -> None:
        """Refuse a draft length that is out of range.

        Raises:
            InvalidRequestError: It is not between 0 and ``max_draft_len``.
        """
        if num_draft_tokens is not None and not 0 <= num_draft_tokens <= self.max_draft_len:
            raise InvalidRequestError(
                f"num_draft_tokens={num_draft_tokens} is not from 0 to max_draft_len={self.max_draft_len}",
                "send 0 to disable speculation, or leave it out for the server's default",
            )

    def _parse(self) -> int | None:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            length = document["num_draft_tokens"]
            if len(document) > 1 or isinstance(length, bool) or not isinstance(length, int | None):
                raise ValueError(f"unknown key or wrong type: {document}")
            self.check(length)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidRequestError) as error:
            raise InvalidRequestError(
                f"{self._path} is invalid: {error!r:.200}",
                "write it with 'draftproof draft-length', as a length from 0 to "
                f"max_draft_len={self.max_draft_len}, or delete it to use the recipe's draft length",
            ) from error
        return length
