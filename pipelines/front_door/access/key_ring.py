"""Finds the client of a request by its API key, and reads the file of keys again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from aiohttp import web

from pipelines.errors import ServerStartError, UnauthorizedError
from pipelines.front_door.access.clients import Client
from pipelines.front_door.access.key_file import ApiKey, digest_of, read_keys

_LOG = logging.getLogger(__name__)

_Version = tuple[int, int, int]


class KeyRing:
    """The keys of a server.

    Args:
        path: The file of keys; None if everybody may use the server. A file that is missing has no keys, so
            every request is refused until there is one.

    Raises:
        ServerStartError: The file is invalid.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._anybody = Client(ApiKey("", ""))
        self._clients: tuple[Client, ...] = ()
        self._version: _Version | None = None
        if path is not None:
            self._version = _version(path)
            self._read(path)

    def client(self, request: web.Request) -> Client:
        """Return the client of a request.

        Raises:
            UnauthorizedError: It has no key, or one that is not in the file.
        """
        if self._path is None:
            return self._anybody
        self._read_again(self._path)
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = digest_of(key.strip().encode(errors="surrogateescape"))
        # All are compared, so that the time does not tell which one is close.
        found = [client for client in self._clients if client.key.has_digest(given)]
        if scheme.lower() != "bearer" or not found:
            raise UnauthorizedError(
                "the request has no valid API key",
                values="a key that is unknown here" if scheme else "no header Authorization",
                limit="Authorization: Bearer <key>",
                remedy="ask the operator of the server for a key",
            )
        return found[0]

    def _read_again(self, path: Path) -> None:
        version = _version(path)
        if version == self._version:
            return
        self._version = version
        try:
            self._read(path)
        except ServerStartError as error:
            _LOG.error("the earlier API keys stay in use: %s", error)

    def _read(self, path: Path) -> None:
        if self._version is None:
            _LOG.warning("there are no API keys, so every request is refused: %s is missing", path)
        self._take(read_keys(path) if self._version else ())

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        """Use these keys; requests in progress still count for theirs."""
        known = {client.key.name: client for client in self._clients}
        clients = []
        for key in keys:
            client = known.get(key.name) or Client(key)
            client.key = key
            clients.append(client)
        self._clients = tuple(clients)


def _version(path: Path) -> _Version | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
