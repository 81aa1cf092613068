"""Reads which servers answer, and by which plan the new ones are rolled out, from YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from pipelines import configuration
from pipelines.errors import CanaryError
from pipelines.validation.openai.server.endpoint import Endpoint, read_key

_REMEDY = "correct the file; docs/how-to/canary.md lists the settings"
DEFAULT_PLAN = Path(__file__).with_name("plan.yaml")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

_LABEL = "[A-Za-z0-9_-]{1,63}"  # of a name in DNS: the resolver fails on empty and longer ones
_ADDRESS = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?:[0-9]{{1,5}}|\[[0-9a-fA-F:]+\]:[0-9]{{1,5}}")


@dataclass(frozen=True)
class UpstreamSetting:
    """What answers: a server with OpenAI's API, or a fleet, which is several servers of one pair.

    Attributes:
        name: Name in states and reports. A rollout is known by the name of its candidate.
        url: Address of the server, with or without the path ``/v1``; "" for a fleet.
        model: Model that requests to it name; "" for the one that the client named.
        key_file: File whose only line is the API key; "" for none. Relative paths count from the folder of
            the settings.
        key_variable: Environment variable with the API key; "" for none.
        servers: ``host:port`` of the gRPC server of each server of the fleet.
        server_name: ``host:port`` whose host is a name in DNS, such as that of a headless service: each of
            its addresses is a server. They are looked up every few seconds. "" for none.
        prefix_tokens: Prompts whose first so many tokens are equal go to the same server of the fleet.
    """

    name: Name
    url: str = ""
    model: str = ""
    key_file: str = ""
    key_variable: str = ""
    servers: tuple[str, ...] = ()
    server_name: str = ""
    prefix_tokens: PositiveInt = 32  # a block of the cache; what is shorter is cached nowhere

    @property
    def is_fleet(self) -> bool:
        """Whether it is a fleet."""
        return bool(self.servers or self.server_name)


@configuration.strict
@dataclass(frozen=True)
class UpstreamsSettings:
    """The servers of a service.

    Attributes:
        name: Name of the service; ``.run/<name>`` has its state.
        stable: What is in service.
        candidate: What to roll out; None for nothing.
        plan: Plan of the rollout; "" for the default. Relative paths count from the folder of the settings.
        timeout_s: Longest silence of a server, in seconds.
    """

    name: Name
    stable: UpstreamSetting
    candidate: UpstreamSetting | None = None
    plan: str = ""
    timeout_s: PositiveFloat = 600.0

    @classmethod
    def read(cls, path: Path) -> UpstreamsSettings:
        """Read a file.

        Raises:
            CanaryError: It cannot be read, a key is unknown or missing, both have one name, or one has
                neither an address nor servers, or one that is none.
        """
        settings = configuration.read_yaml(cls, path, CanaryError, _REMEDY)
        if settings.candidate is not None and settings.candidate.name == settings.stable.name:
            raise CanaryError(
                f"{path}: both have the name {settings.stable.name}", "give each a name of its own"
            )
        for each in settings.upstreams:
            if bool(each.url) == each.is_fleet:
                what = "both url and servers" if each.url else "neither url nor servers nor server_name"
                raise CanaryError(f"{path}: {each.name} has {what}", _REMEDY)
            for address in filter(None, (*each.servers, each.server_name)):
                if not _ADDRESS.fullmatch(address):
                    what = f"servers or server_name of {each.name} has {address!r}, which is no host:port"
                    raise CanaryError(f"{path}: {what}", _REMEDY)
        return settings

    @property
    def upstreams(self) -> tuple[UpstreamSetting, ...]:
        """What there is of both."""
        return (self.stable,) if self.candidate is None else (self.stable, self.candidate)

    def plan_file(self, path: Path) -> Path:
        """Return the plan's file, given that of the settings."""
        return path.parent / self.plan if self.plan else DEFAULT_PLAN


def endpoint_of(setting: UpstreamSetting, path: Path) -> Endpoint:
    """Return where a server is, with its key.

    Args:
        setting: The server.
        path: File of the settings.

    Raises:
        InvalidRequestError: The address or the key is invalid, or the key cannot be read.
    """
    key_file = path.parent / setting.key_file if setting.key_file else None
    key = read_key(key_file, setting.key_variable) if key_file or setting.key_variable else ""
    return Endpoint.of(setting.url, setting.model, key, {})
