"""Counts what each client has in progress, and refuses what is beyond the limits of its API key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from pipelines.errors import InvalidRequestError, RateLimitError
from pipelines.front_door.access.key_file import ApiKey

MAX_ID_BYTES = 256  # the models' limit


class Client:
    """A client with its requests in progress. Used on one event loop.

    Args:
        key: Its API key, with its limits.
    """

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self._num_requests = 0
        self._num_tokens = 0

    def session(self, session_id: str) -> str:
        """Return an id for a session that only this client can name.

        Drafts are looked up in a session's answers, so whoever names it can find out what was in them. An
        empty or invalid id is returned unchanged: ``router`` refuses the latter.
        """
        try:
            given = session_id.encode()
        except UnicodeEncodeError:
            return session_id
        if not (given and self.key.name) or len(given) > MAX_ID_BYTES:
            return session_id
        return hashlib.sha256(self.key.sha256.encode() + given).hexdigest()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while the block runs.

        Raises:
            RateLimitError: The key has ``max_requests`` in progress.
        """
        limit = self.key.max_requests
        if limit is not None and self._num_requests >= limit:
            raise RateLimitError(
                "the API key has too many requests in progress",
                values=f"{self._num_requests} requests",
                limit=f"{limit} at a time",
                remedy="send the request when one of them has ended",
            )
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    @contextmanager
    def tokens(self, num_tokens: int) -> Iterator[None]:
        """Count the tokens of a request while the block runs.

        Args:
            num_tokens: Tokens of the prompts and of the longest answers.

        Raises:
            InvalidRequestError: They are more than the key may ever have in progress.
            RateLimitError: They are more than it may have now.
        """
        limit = self.key.max_tokens
        if limit is not None and num_tokens > limit:
            raise InvalidRequestError(
                "the request is too large for the API key",
                values=f"{num_tokens} tokens of prompts and longest answers",
                limit=f"{limit} at a time",
                remedy="send a shorter prompt, a smaller max_tokens, or fewer prompts and answers",
            )
        if limit is not None and self._num_tokens + num_tokens > limit:
            raise RateLimitError(
                "the API key has too many tokens in progress",
                values=f"{self._num_tokens} tokens, and {num_tokens} of this request",
                limit=f"{limit} at a time, prompts and longest answers together",
                remedy="send the request when others have ended, or with a smaller max_tokens",
            )
        self._num_tokens += num_tokens
        try:
            yield
        finally:
            self._num_tokens -= num_tokens


_CLIENT: web.RequestKey[Client] = web.RequestKey("client", Client)


def set_client(request: web.Request, client: Client) -> None:
    """Record who sent a request."""
    request[_CLIENT] = client


def client_of(request: web.Request) -> Client:
    """Return who sent a request."""
    return request[_CLIENT]
