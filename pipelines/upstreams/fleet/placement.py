"""Chooses the server for a request, and the order in which others are asked if it fails.

Requests of one session, and prompts with the same beginning, go to the same server, whose cache has what they
share, as long as it has at most ``_MOST_OF_MEAN`` times the mean number of open answers. Then the next one in
their order gets them. All others go to the server with the fewest open answers. Front doors share nothing,
and choose alike.

Sources: Thaler and Ravishankar 1998, Using name-based mappings to increase hit rates (rendezvous hashing);
Mirrokni et al. 2018, Consistent hashing with bounded loads, arXiv:1608.01350.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence

import numpy as np

from pipelines.upstreams.fleet.server import FleetServer
from pipelines.wire.request import CompletionRequest

_MOST_OF_MEAN = 1.25


def placed(
    servers: Sequence[FleetServer], request: CompletionRequest, prefix_tokens: int
) -> list[FleetServer]:
    """Return the servers in the order in which they are asked; none if none is ready.

    The first is chosen by key and load. Those that answer as it does follow, so an answer that it leaves
    unfinished stays the same to the bit. Servers that failed too often lately come last, and after them
    those that are not ready: they may have returned when they are needed.

    Args:
        servers: All servers of the fleet.
        request: The request.
        prefix_tokens: Prompts whose first so many tokens are equal go to the same server.
    """
    ready = [server for server in servers if server.is_ready]
    if not ready:
        return []
    able = [server for server in ready if server.lets_through()] or ready
    most_open = math.ceil(_MOST_OF_MEAN * (sum(server.num_open for server in able) + 1) / len(able))
    key = _key_of(request, prefix_tokens)
    salt = hashlib.blake2b(key or secrets.token_bytes(8), digest_size=32).digest()

    def by_load(server: FleetServer) -> tuple[bool, int, bytes]:
        rank = hashlib.blake2b(server.address.encode(), key=salt, digest_size=8).digest()
        if key:
            return server.num_open >= most_open, 0, rank
        return False, server.num_open, rank

    able_ones = frozenset(able)
    places = {server: by_load(server) for server in servers}
    first = min(able, key=places.__getitem__)

    def after_it(server: FleetServer) -> tuple[bool, bool, bool, tuple[bool, int, bytes]]:
        return not server.is_ready, server not in able_ones, not server.answers_as(first), places[server]

    return [first, *sorted((server for server in servers if server is not first), key=after_it)]


def _key_of(request: CompletionRequest, prefix_tokens: int) -> bytes:
    """Return what a request shares with those that should go to the same server; empty without such."""
    if request.session_id:
        return request.session_id.encode("utf-8", "surrogatepass")
    if len(request.prompt_ids) >= prefix_tokens:
        return np.array(request.prompt_ids[:prefix_tokens], np.int64).tobytes()
    return b""
