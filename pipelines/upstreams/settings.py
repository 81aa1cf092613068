"""Reads which servers answer, and by which plan the new one is rolled out, from YAML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat

from pipelines import configuration
from pipelines.errors import CanaryError
from pipelines.validation.openai.server.endpoint import Endpoint, read_key

_REMEDY = "correct the file; docs/how-to/canary.md lists the settings"
DEFAULT_PLAN = Path(__file__).with_name("plan.yaml")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


@dataclass(frozen=True)
class UpstreamSetting:
    """An OpenAI-compatible server.

    Attributes:
        name: Name in states and reports. A rollout is known by the name of its candidate.
        url: Address, with or without the path ``/v1``.
        model: Model that requests to it name; "" for the one that the client named.
        key_file: File whose only line is the API key; "" for none. Relative paths count from the folder of
            the settings.
        key_variable: Environment variable with the API key; "" for none.
    """

    name: Name
    url: str
    model: str = ""
    key_file: str = ""
    key_variable: str = ""


@configuration.strict
@dataclass(frozen=True)
class UpstreamsSettings:
    """The servers of a service.

    Attributes:
        name: Name of the service; ``.run/<name>`` has its state.
        stable: Server in service.
        candidate: Server to roll out; None for none.
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
            CanaryError: It cannot be read, a key is unknown or missing, or both servers have one name.
        """
        settings = configuration.read_yaml(cls, path, CanaryError, _REMEDY)
        if settings.candidate is not None and settings.candidate.name == settings.stable.name:
            raise CanaryError(
                f"{path}: both servers have the name {settings.stable.name}", "give each a name of its own"
            )
        return settings

    @property
    def upstreams(self) -> tuple[UpstreamSetting, ...]:
        """The servers that there are."""
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
