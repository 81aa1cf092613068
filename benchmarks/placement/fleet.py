"""Three servers whose caches are small, and front doors that choose among them in several ways."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.front_door.alone import front_door_alone
from benchmarks.front_door.http_client import CompletionsClient
from build.built_pair import BuiltPair
from build.recipe import EngineRecipe, Recipe
from build.repository import render_recipe
from pipelines.client import CompletionRequest, Generation
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server
from pipelines.front_door.observing.model_metrics import samples_of

NUM_SERVERS = 3
NUM_BLOCKS = 193
"""Blocks of 32 tokens of each cache: about 10 system prompts of 512 tokens beside a few open answers."""

BY_PREFIX, BY_LOAD, AT_RANDOM = "by prefix and load", "by load", "at random"
CHOICES = (BY_PREFIX, BY_LOAD, AT_RANDOM)

_NO_PREFIX = 1 << 20  # tokens that no prompt has, so that a front door regards the load alone
_QUERIES = "draftproof_prefix_cache_queries_total"
_HITS = "draftproof_prefix_cache_hits_total"


@dataclass(frozen=True)
class Lookups:
    """Tokens of prompts that the servers looked up in their caches, and those that they found."""

    num_looked_up: float
    num_found: float

    def since(self, before: Lookups) -> Lookups:
        """Return what was added after an earlier reading."""
        return Lookups(self.num_looked_up - before.num_looked_up, self.num_found - before.num_found)


@dataclass(frozen=True)
class Fleet:
    """A running fleet.

    Attributes:
        servers: The servers.
        doors: Address of the front door by the name in a request's job: one for ``BY_PREFIX``, one for
            ``BY_LOAD``, and for ``AT_RANDOM`` one for each server, among which the client draws.
    """

    servers: tuple[Server, ...]
    doors: Mapping[str, str]

    def ask(self, request: CompletionRequest, door: str) -> Generation:
        """Send a request to a front door on a connection of its own: idle ones would be closed.

        Raises:
            VerificationError: It was not answered.
        """
        parts = urlsplit(self.doors[door])
        client = CompletionsClient(str(parts.hostname), parts.port or 0)
        try:
            return client.generate(request)
        finally:
            client.close()

    def lookups(self) -> Lookups:
        """Read the counters of all servers."""
        found = [samples_of(_metrics(server)) for server in self.servers]
        totals = (
            sum(sample.value for samples in found for sample in samples[name]) for name in (_QUERIES, _HITS)
        )
        return Lookups(*totals)


def single_server(number: int) -> str:
    """Return the name of the front door that has one server."""
    return f"server {number}"


def small(recipe: Recipe, num_blocks: int) -> Recipe:
    """Return a recipe with one thread for each engine, and caches of some size."""

    def changed(engine: EngineRecipe) -> EngineRecipe:
        return replace(engine, num_threads=1, kv_cache=replace(engine.kv_cache, num_blocks=num_blocks))

    return replace(recipe, target=changed(recipe.target), draft=changed(recipe.draft))


@contextmanager
def running_servers(pair: BuiltPair, folder: Path, count: int) -> Iterator[tuple[Server, ...]]:
    """Run servers of a pair on free ports, without front doors of their own.

    Args:
        pair: The pair.
        folder: For everything that is written.
        count: Number of servers.

    Raises:
        ServerStartError: One did not become ready.
    """
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            repository = render_recipe(
                pair.recipe, pair.draft_engine, pair.target_engine, folder / f"server-{number}"
            )
            print(f"starting server {number}", file=sys.stderr, flush=True)
            servers.append(stack.enter_context(Server.start(repository.parent, Ports.free())))
        for server in servers:
            server.wait_ready()
        yield tuple(servers)


@contextmanager
def running_fleet(pair: BuiltPair, folder: Path) -> Iterator[Fleet]:
    """Run ``NUM_SERVERS`` servers of a pair and the front doors; arguments and errors as for the servers."""
    with running_servers(pair, folder, NUM_SERVERS) as servers, ExitStack() as stack:
        addresses = [grpc_address(server) for server in servers]
        # One at a time: each front door loads the tokenizer.
        wanted = {BY_PREFIX: (addresses, {}), BY_LOAD: (addresses, {"prefix_tokens": _NO_PREFIX})}
        wanted |= {single_server(number): ([each], {}) for number, each in enumerate(addresses)}
        doors = {}
        for number, (name, (behind, settings)) in enumerate(wanted.items()):
            own = folder / f"front-door-{number}"
            own.mkdir(parents=True, exist_ok=True)
            doors[name] = stack.enter_context(front_door_alone(own, behind, **settings)).url
        yield Fleet(servers, doors)


def grpc_address(server: Server) -> str:
    """Return where the gateway of a server listens for gRPC."""
    return f"{HOST}:{server.ports.grpc}"


def _metrics(server: Server) -> str:
    reply = httpx.get(f"http://{HOST}:{server.ports.metrics}/metrics", timeout=30, trust_env=False)
    return reply.raise_for_status().text
