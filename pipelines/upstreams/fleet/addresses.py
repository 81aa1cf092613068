"""The addresses of a fleet's servers: some are named in the settings, others are found in DNS."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

_LOG = logging.getLogger(__name__)


class Addresses:
    """Finds the servers of a fleet. Used on one event loop.

    Args:
        servers: ``host:port`` of servers that stay.
        name: ``host:port``; each address of the host is a server. "" for none.
    """

    def __init__(self, servers: Sequence[str], name: str) -> None:
        self._servers = tuple(servers)
        self._name = name
        self._found: tuple[str, ...] = ()
        self._is_silent = False

    @property
    def may_change(self) -> bool:
        """Whether ``now`` may return other addresses later."""
        return bool(self._name)

    async def now(self) -> tuple[str, ...]:
        """Return the current addresses, in order and each once.

        While DNS has no answer the latest addresses stay: whether servers are ready is asked of themselves.
        """
        if self._name:
            host, _, port = self._name.rpartition(":")
            try:
                found = await self._look_up(host, int(port))
            except OSError as error:
                if not self._is_silent:
                    _LOG.warning(
                        "%s is not found (%s), so its latest %d addresses stay", host, error, len(self._found)
                    )
                self._is_silent = True
            else:
                self._is_silent = False
                self._found = found
        return tuple(dict.fromkeys((*self._servers, *self._found)))

    async def _look_up(self, host: str, port: int) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        answers = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        hosts = sorted({str(address[0]) for *_, address in answers})
        return tuple(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts)
