"""The world of a rollout between servers that others run: nothing is loaded, and nothing is stopped."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pipelines.canary.controller.world import PhaseResult
from pipelines.canary.judge.resources import Sample
from pipelines.canary.run_files import RouterFiles
from pipelines.errors import CanaryError, DraftproofError, ModelNotFoundError
from pipelines.upstreams.request import RESPONSES
from pipelines.validation.openai.server.abilities import Abilities, find_abilities
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import Endpoint

_CONNECT_S = 2.0
_NEEDED = ("completions", "chat", "streams")
_ANSWERS_WITHIN_S = 120.0


class UpstreamWorld(RouterFiles):
    """Implements ``World``.

    Args:
        run_directory: Folder of the service's state.
        endpoints: The servers by their names.
        stable: Name of the server in service.
        candidate: Name of the server to roll out.
    """

    def __init__(
        self, run_directory: Path, endpoints: Mapping[str, Endpoint], stable: str, candidate: str
    ) -> None:
        super().__init__(run_directory)
        self._endpoints = endpoints
        self._stable = stable
        self._candidate = candidate

    def preflight(self) -> PhaseResult:
        """Check that the candidate lists the models that clients name, and answers in the same ways."""
        stable, candidate = (self._endpoints[name] for name in (self._stable, self._candidate))
        listed = {"stable": _models(stable), "candidate": _models(candidate)}
        needed = {candidate.model} if candidate.model else set(listed["stable"])
        if missing := sorted(needed - set(listed["candidate"])):
            reason = f"refused: {self._candidate} does not list {', '.join(missing)}"
            return PhaseResult(False, f"{reason}; name its model in the settings", listed)
        able, also_able = _abilities(stable), _abilities(candidate)
        evidence = {"stable": able.document(), "candidate": also_able.document()}
        lacking = [name for name in _NEEDED if getattr(able, name) and not getattr(also_able, name)]
        if self._responses(self._stable) == "answered" and self._responses(self._candidate) == "missing":
            lacking.append(RESPONSES)
        if lacking:
            return PhaseResult(False, f"refused: {self._candidate} has no {', '.join(lacking)}", evidence)
        return PhaseResult(True, "both servers list the same models and answer in the same ways", evidence)

    def load(self) -> PhaseResult:
        """Name the candidate's arm: its server runs already."""
        evidence = {"socket": self._candidate, "same_target": True}
        return PhaseResult(True, "its server runs already", evidence)

    def _responses(self, name: str) -> Literal["answered", "missing", "failed"]:
        """Ask whether a server has ``/v1/responses``, which others than vLLM and OpenAI may not have."""
        endpoint = self._endpoints[name]
        model = endpoint.model or next(iter(_models(endpoint)), "")
        body = {"model": model, "input": "a", "max_output_tokens": 16, "store": False}
        with closing(Connection(endpoint, _ANSWERS_WITHIN_S)) as connection:
            try:
                list(connection.post(RESPONSES, body))
            except ModelNotFoundError:  # HTTP 404
                return "missing"
            except DraftproofError:  # judged later, beside the other server
                return "failed"
        return "answered"

    def settle(self) -> PhaseResult:
        """Change nothing: the candidate answers where it did."""
        return PhaseResult(True, f"{self._candidate} is in service; make it stable in the settings")

    def unload(self) -> str:
        """Leave both servers to those who run them."""
        return "both servers run on"

    def sample(self) -> Sample:
        """Refuse: the processes are elsewhere.

        Raises:
            CanaryError: Always.
        """
        raise CanaryError(
            f"memory and CPU time of {self._candidate} are not known, as of all servers of other engines",
            "write memory: null and cpu_per_token: null in the limits",
        )

    def listener(self, socket: str) -> int | None:
        """Connect to a server; which process answers is not known."""
        parts = urlsplit(self._endpoints[socket].url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with sockets.create_connection((parts.hostname or "", port), _CONNECT_S):
                return 1
        except OSError:
            return None


def _abilities(endpoint: Endpoint) -> Abilities:
    """Find out what a server can; of several models the first is asked."""
    endpoint = replace(endpoint, model=endpoint.model or next(iter(_models(endpoint)), ""))
    with closing(Connection(endpoint, _ANSWERS_WITHIN_S)) as connection:
        return find_abilities(endpoint, connection)


def _models(endpoint: Endpoint) -> list[str]:
    with closing(Connection(endpoint, _ANSWERS_WITHIN_S)) as connection:
        content = connection.get("/v1/models")
    try:
        listed: list[Any] = json.loads(content)["data"]
        return sorted(str(each["id"]) for each in listed)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CanaryError(
            f"{endpoint.url}/v1/models is no list of models ({type(error).__name__})", "check the address"
        ) from None
