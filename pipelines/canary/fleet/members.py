"""Finds the servers of a fleet at each look: those of a list, or those that a name has in DNS.

Addresses of a name come and go, and one may become that of another server. So a server that was found by a
name is known by its own (``server_name``), and every call says which server is meant.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from pipelines.canary.controller.world import World
from pipelines.canary.fleet.call import Description
from pipelines.errors import DraftproofError

WAITS_TO_ADOPT = "serves the candidate, and starts with another package: name the new one in the manifest"
"""Status of a server that has the promoted candidate by the rollout alone."""

_EARLY = "its own package is the candidate's, which is not promoted: take it back in the manifest"
_VANISHED = "away: its address is gone"


@dataclass(frozen=True)
class Members:
    """The servers of a fleet at one look.

    Attributes:
        names: All of them, in the order in which they get the candidate.
        worlds: Those that can be asked.
        away: Why the others cannot.
        strangers: Servers with a third pair, and what they serve. They count as away, but at its end the
            rollout waits for none of them.
        adopted: Servers whose own pair is the candidate, which they therefore load at their start.
        must_adopt: Whether run directories end with their servers, so that a promotion is only complete when
            all servers start with the candidate by themselves.
    """

    names: tuple[str, ...]
    worlds: Mapping[str, World]
    away: Mapping[str, str] = field(default_factory=dict)
    strangers: Mapping[str, str] = field(default_factory=dict)
    adopted: frozenset[str] = frozenset()
    must_adopt: bool = False

    @classmethod
    def listed(cls, worlds: Mapping[str, World]) -> Members:
        """Return the servers of a list, which stay the same."""
        return cls(tuple(worlds), worlds)

    @property
    def unadopted(self) -> tuple[str, ...]:
        """Servers that still have to start with the candidate by themselves."""
        return tuple(each for each in self.names if self.must_adopt and each not in self.adopted)


class Membership(Protocol):
    """Finds the servers of a fleet."""

    def __call__(self, candidate: str, *, is_stable: bool) -> Members:
        """Return the servers of now.

        Args:
            candidate: Name of the candidate; "" until it is known.
            is_stable: Whether the candidate has been promoted.
        """


class FoundByName:
    """The servers whose agents a name has in DNS.

    A server whose address vanishes is gone for front doors as well, which follow the same kind of name. It
    stays a member, away, until its lease must have ended; after that it can change nothing any more.

    Args:
        look_up: Returns the addresses of now, or raises OSError while DNS has no answer.
        describe: Asks the agent at an address for its server.
        world: Makes the world of a server from its address, its name and the candidate's.
        stable: Name of the pair in service when the rollout began.
        known: Servers that had the candidate before, in their order.
        gone_after_s: Seconds after which a server without an address is gone.
        clock: Returns the time.
    """

    def __init__(
        self,
        look_up: Callable[[], Sequence[str]],
        describe: Callable[[str], Description],
        world: Callable[[str, str, str], World],
        stable: str,
        known: Sequence[str],
        gone_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._describe = describe
        self._make_world = world
        self._stable = stable
        self._gone_after_s = gone_after_s
        self._clock = clock
        self._addresses: Sequence[str] = ()
        self._worlds: dict[tuple[str, str], World] = {}
        self._server_at: dict[str, str] = {}
        self._seen_at_s = dict.fromkeys(known, clock())  # in the order in which they get the candidate

    def __call__(self, candidate: str, *, is_stable: bool) -> Members:
        """Return the servers of now; see ``Membership``."""
        found, away = self._look()
        vanished = self._forget(found.keys() | away.keys())
        away |= dict.fromkeys(vanished, _VANISHED)
        worlds: dict[str, World] = {}
        strangers: dict[str, str] = {}
        adopted = set()
        for name, (address, pair) in found.items():
            if candidate and pair.own == candidate:
                adopted.add(name)
                if not is_stable:
                    away[name] = _EARLY
                    continue
            elif pair.fingerprint not in (self._stable, candidate):
                strangers[name] = f"serves another pair than the rollout: {pair}"
                continue
            worlds[name] = self._world(address, name, candidate)
        known = [name for name in self._seen_at_s if name in worlds or name in away]
        names = (*known, *(each for each in away if each not in known))  # the others have no names yet
        ordered = {name: worlds[name] for name in names if name in worlds}
        return Members(names, ordered, away, strangers, frozenset(adopted), must_adopt=True)

    def _look(self) -> tuple[dict[str, tuple[str, Description]], dict[str, str]]:
        """Return who answers at which address, and why the others do not."""
        try:
            self._addresses = self._look_up()
        except OSError:  # it says nothing, so nobody is gone
            self._seen_at_s = dict.fromkeys(self._seen_at_s, self._clock())
        now_s = self._clock()
        found: dict[str, tuple[str, Description]] = {}
        silent: dict[str, str] = {}
        for address, answer in describe_all(self._addresses, self._describe).items():
            if isinstance(answer, Description):
                self._server_at[address] = answer.server
                found.setdefault(answer.server, (address, answer))  # it may have two, of IPv4 and of IPv6
                self._seen_at_s[answer.server] = now_s
                continue
            name = self._server_at.get(address, address)
            silent[name] = f"away: {answer}"
            if name in self._seen_at_s:
                self._seen_at_s[name] = now_s
        return found, {name: why for name, why in silent.items() if name not in found}

    def _forget(self, present: set[str]) -> list[str]:
        """Forget servers that are gone; returns those whose lease may still run."""
        now_s = self._clock()
        vanished = {name: seen_s for name, seen_s in self._seen_at_s.items() if name not in present}
        for name, seen_s in vanished.items():
            if now_s - seen_s > self._gone_after_s:
                del self._seen_at_s[name]
        known = self._seen_at_s
        self._worlds = {key: world for key, world in self._worlds.items() if key[1] in known}
        self._server_at = {address: name for address, name in self._server_at.items() if name in known}
        return [name for name in vanished if name in self._seen_at_s]

    def _world(self, address: str, name: str, candidate: str) -> World:
        if (address, name) not in self._worlds:
            self._worlds[address, name] = self._make_world(address, name, candidate)
        return self._worlds[address, name]


def addresses_of(name: str) -> list[str]:
    """Return the agents whose hosts a name has in DNS.

    Args:
        name: ``host:port``.

    Raises:
        OSError: DNS has no answer.
    """
    host, _, port = name.rpartition(":")
    answers = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in answers})
    return [f"http://[{each}]:{port}" if ":" in each else f"http://{each}:{port}" for each in hosts]


def describe_all(
    addresses: Sequence[str], describe: Callable[[str], Description]
) -> dict[str, Description | DraftproofError]:
    """Ask agents concurrently for their servers, or find out why they do not answer."""

    def asked(address: str) -> Description | DraftproofError:
        try:
            return describe(address)
        except DraftproofError as error:
            return error

    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return dict(zip(addresses, pool.map(asked, addresses), strict=True))
