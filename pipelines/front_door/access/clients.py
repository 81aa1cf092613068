"""Finds the client of a request by its API key, and keeps it within the limits of the key."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from pipelines.atomic_file import version_of
from pipelines.errors import (
    ForbiddenError,
    InvalidRequestError,
    RateLimitError,
    ServerStartError,
    UnauthorizedError,
)
from pipelines.front_door.access.key_file import ApiKey, digest_of, read_keys
from pipelines.wire.request import KEY_HEADER, MAX_ID_BYTES


class Client:
    """A client with its requests in progress. Used on one event loop.

    Args:
        key: Its API key, with its limits.
        has_own_cache: Whether it reuses only what its own requests have computed.
    """

    def __init__(self, key: ApiKey, *, has_own_cache: bool = False) -> None:
        self.key = key
        self._has_own_cache = has_own_cache
        self._num_requests = 0
        self._num_tokens = 0

    def session(self, session_id: str) -> str:
        """Return an id for a session that only this client can name.

        Drafts are looked up in a session's answers, so whoever names it can find out what was in them. An
        empty or invalid id is returned unchanged: ``router`` refuses the latter.
        """
        return self._own(session_id) if session_id else ""

    def cache_salt(self, salt: str) -> str:
        """Return the salt of a request that sends ``salt``: one of this client alone, if it is to have one.

        An invalid salt is returned unchanged, as in ``session``.
        """
        return self._own(salt) if self._has_own_cache else salt

    def _own(self, name: str) -> str:
        try:
            given = name.encode()
        except UnicodeEncodeError:
            return name
        if not self.key.name or len(given) > MAX_ID_BYTES:
            return name
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
                f"the API key has {self._num_requests} requests in progress, {limit} at a time are allowed",
                "send the request when one of them has ended",
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
                f"the request is too large for the API key: {num_tokens} tokens of prompts and longest "
                f"answers, and at most {limit} at a time are allowed",
                "send a shorter prompt, a smaller max_tokens, or fewer prompts and answers",
            )
        if limit is not None and self._num_tokens + num_tokens > limit:
            raise RateLimitError(
                f"the API key has {self._num_tokens} tokens of prompts and longest answers in progress, this "
                f"request has {num_tokens}, and at most {limit} at a time are allowed",
                "send the request when others have ended, or with a smaller max_tokens",
            )
        self._num_tokens += num_tokens
        try:
            yield
        finally:
            self._num_tokens -= num_tokens


CLIENT: web.RequestKey[Client] = web.RequestKey("client", Client)
"""The client that sent a request."""

_LOG = logging.getLogger(__name__)


class KeyRing:
    """The keys of a server.

    Args:
        path: The file of keys; None if everybody may use the server. A file that is missing has no keys, so
            every request is refused until there is one.
        server_key: The server's key, which operators send in a header of its own; "" for none.
        separates_caches: Whether each key reuses only what its own requests have computed.

    Raises:
        ServerStartError: The file is invalid.
    """

    def __init__(self, path: Path | None, server_key: str = "", *, separates_caches: bool = False) -> None:
        self._path = path
        self._server_key = server_key.encode()
        self._separates_caches = separates_caches
        self._anybody = Client(ApiKey("", ""))
        self._clients: tuple[Client, ...] = ()
        self._version: tuple[int, ...] | None = None
        if path is not None:
            self._read(path, version_of(path))

    def client(self, request: web.Request) -> Client:
        """Return the client of a request.

        Raises:
            UnauthorizedError: It has no key, or one that is not in the file.
        """
        if self._path is None:
            return self._anybody
        self._read_again(self._path)
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = request.headers.get("X-Api-Key", "")  # as Anthropic's clients send it
        given = digest_of(key.strip().encode(errors="surrogateescape"))
        # All are compared, so that the time does not tell which one is close.
        found = [client for client in self._clients if client.key.has_digest(given)]
        if not found:
            raise UnauthorizedError(
                "the API key is unknown here" if scheme or key else "the request has no API key",
                "send Authorization: Bearer <key>, or x-api-key: <key>, with one of this server's operator",
            )
        return found[0]

    def check_arm(self, request: web.Request, arm: str) -> None:
        """Refuse a request that names an arm, unless its key has the right to or it is an operator's.

        Raises:
            ForbiddenError: It may not choose the arm.
            UnauthorizedError: It has no valid key.
        """
        given = request.headers.get(KEY_HEADER, "").encode(errors="surrogateescape")
        is_operator = bool(self._server_key) and hmac.compare_digest(given, self._server_key)
        if not is_operator and not self.client(request).key.may_choose_arm:
            raise ForbiddenError(
                f"this client may not choose the arm: arm={arm!r:.100}",
                f"leave the arm out; the operator can add a key with --may-choose-arm, or send {KEY_HEADER}",
            )

    def _read_again(self, path: Path) -> None:
        if (version := version_of(path)) == self._version:
            return
        try:
            self._read(path, version)
        except ServerStartError as error:
            _LOG.error("the earlier API keys stay in use: %s", error)

    def _read(self, path: Path, version: tuple[int, ...] | None) -> None:
        """Use the keys of the file; requests in progress still count for theirs."""
        self._version = version
        if version is None:
            _LOG.warning("there are no API keys, so every request is refused: %s is missing", path)
        known = {client.key.name: client for client in self._clients}
        clients = []
        for key in read_keys(path) if version else ():
            client = known.get(key.name) or Client(key, has_own_cache=self._separates_caches)
            client.key = key
            clients.append(client)
        self._clients = tuple(clients)
