"""The file of a fleet: where its agents are, and where its rollouts keep their state."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pipelines import configuration
from pipelines.errors import CanaryError

_REMEDY = "correct the file of the fleet; nothing was changed"
_LEAST_KEY = 32


@configuration.strict
@dataclass(frozen=True)
class FleetFile:
    """The file of a fleet. Paths are relative to its folder.

    Attributes:
        key_file: Path of the file with the agents' key.
        agents: ``http://host:port`` of the agents, in the order in which their servers get a candidate.
        agents_name: ``host:port`` in place of ``agents``, if each address of the host is that of an agent.
        state_file: Path of the file with the state of the rollouts; "" for one beside this file.
        lease: Name of a Lease of Kubernetes that the controller must hold, besides the lock of the state
            file; "" for none.
    """

    key_file: str
    agents: tuple[str, ...] = ()
    agents_name: str = ""
    state_file: str = ""
    lease: str = ""

    def __post_init__(self) -> None:
        wrong = [each for each in self.agents if not each.startswith(("http://", "https://"))]
        if wrong or len(set(self.agents)) < len(self.agents):
            raise CanaryError(
                "agents must be different addresses",
                values=f"agents={', '.join(self.agents)}",
                limit="http://host:port, each once",
                remedy=_REMEDY,
            )
        if bool(self.agents) == bool(self.agents_name):
            raise CanaryError(
                "the agents of a fleet are listed or have one name",
                values=f"agents={list(self.agents)}, agents_name={self.agents_name!r}",
                limit="one of both",
                remedy=_REMEDY,
            )
        if self.agents_name and not _is_host_and_port(self.agents_name):
            raise CanaryError(
                "the name of the agents cannot be looked up",
                values=f"agents_name={self.agents_name!r}",
                limit="host:port, whose host is a name of DNS",
                remedy=_REMEDY,
            )

    @classmethod
    def read(cls, path: Path) -> FleetFile:
        """Read the file of a fleet.

        Raises:
            CanaryError: It cannot be read.
        """
        return configuration.read_yaml(cls, path, CanaryError, _REMEDY)


def _is_host_and_port(name: str) -> bool:
    found = re.fullmatch(r"([^:/\s]+):[0-9]+", name)
    if found is None:
        return False
    try:
        found[1].encode("idna")  # as a look-up does, which would fail without saying what is wrong
    except UnicodeError:
        return False
    return True


def fleet_state_file(path: Path) -> Path:
    """Return the state file of a fleet's rollouts.

    Args:
        path: File of the fleet.

    Raises:
        CanaryError: It cannot be read.
    """
    named = FleetFile.read(path).state_file
    return path.parent / named if named else path.with_suffix(".sqlite")


def read_agent_key(path: Path) -> str:
    """Read the key that agents and controllers share.

    Raises:
        CanaryError: The file cannot be read, or is readable by other users, or its key is too short.
    """
    try:
        key = path.read_text(encoding="ascii").strip()
        is_open = _is_open(path)
    except (OSError, ValueError) as error:
        raise _no_key(path, repr(error)) from None
    if is_open or len(key) < _LEAST_KEY:
        raise _no_key(path, "readable by others" if is_open else f"{len(key)} characters")
    return key


def _is_open(path: Path) -> bool:
    """Return whether others may read or change a file.

    A Secret of Kubernetes belongs to root, and a pod's user reads it as a member of its group.
    """
    found = path.stat()
    is_secret = found.st_uid == 0 and os.getuid() != 0
    return bool(found.st_mode & (0o037 if is_secret else 0o077))


def _no_key(path: Path, seen: str) -> CanaryError:
    return CanaryError(
        "the agents' key cannot be used",
        values=f"{path}: {seen}",
        limit=f"a file of {_LEAST_KEY} ASCII characters or more that only its owner can read",
        remedy="make one with 'umask 077; openssl rand -hex 32 > FILE' and copy it to all machines",
    )
