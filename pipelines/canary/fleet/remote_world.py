"""A server of a fleet as its controller sees it: the methods of ``World``, carried out by its agent."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from typing import Any, TypeVar

import httpx

from pipelines import configuration
from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.repository_api import LOAD_TIMEOUT_S
from pipelines.canary.fleet.call import DESCRIBE, PATH, Call, Description
from pipelines.canary.judge.resources import Sample
from pipelines.errors import CanaryError, RequestTimeoutError, ServerUnavailableError, from_wire
from pipelines.router.arms import ArmTable
from pipelines.router.observation import Observation

_Document = TypeVar("_Document")

_ANSWERS_WITHIN_S = 3.0
"""Less than a lease, of which a silent server costs a part once."""

_REMEDY = "run the same version of Draftproof on all machines"


class RemoteWorld:
    """Implements ``World`` by calls to an agent.

    Args:
        address: ``http://host:port`` of the agent.
        key: Key of the agent.
        call: What all calls of the rollout say.
        check: Called before each call; raises an error if this controller may not act any more.
    """

    def __init__(self, address: str, key: str, call: Call, check: Callable[[], None] = lambda: None) -> None:
        self._call = call
        self._check = check
        self._http = agent_client(address, key)

    def run(self) -> str:
        """Identify the run of the server by its key."""
        return str(self._ask("run"))

    def preflight(self) -> Outcome:
        """Have the candidate rendered and checked; its name is known from then on."""
        outcome = self._work("preflight")
        if outcome.is_good:
            self._call = replace(self._call, candidate=outcome.evidence["socket"])
        return outcome

    def load(self) -> Outcome:
        """Have the candidate loaded."""
        return self._work("load")

    def probe(self) -> Outcome:
        """Have the candidate probed."""
        return self._work("probe")

    def unload(self) -> str:
        """Have the candidate unloaded, if it was ever rendered."""
        return str(self._ask("unload", LOAD_TIMEOUT_S)) if self._call.candidate else "it was not rendered"

    def keep(self) -> Outcome:
        """Have the candidate loaded at the start of the server from now on."""
        return self._work("keep")

    def settle(self) -> Outcome:
        """Have the former stable pair unloaded."""
        return self._work("settle")

    def write(self, table: ArmTable) -> None:
        """Send the table of arms, with the rest of its lease."""
        lease_s = max(0.0, table.lease_until_s - time.time())
        self._ask("write", table=table, lease_s=lease_s)

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """Read the log of the server's router."""
        found = self._ask("observations", offset=offset)
        return [Observation.from_line(line.encode()) for line in found["lines"]], int(found["offset"])

    def observations_end(self) -> int:
        """Return the current end of the log of the server's router."""
        return int(self._ask("observations_end"))

    def sample(self) -> Sample:
        """Have the processes of both pairs measured."""
        return self._parse(Sample, self._ask("sample"))

    def listener(self, socket: str) -> int | None:
        """Identify the process of the candidate, which the agent knows by its name."""
        found = self._ask("listener")
        return None if found is None else int(found)

    def _work(self, method: str) -> Outcome:
        return self._parse(Outcome, self._ask(method, LOAD_TIMEOUT_S))

    def _ask(self, method: str, timeout_s: float = _ANSWERS_WITHIN_S, **changes: Any) -> Any:
        self._check()
        body = json.dumps(asdict(replace(self._call, **changes)))
        return ask_agent(self._http, "POST", f"{PATH}{method}", body, timeout_s)

    def _parse(self, kind: type[_Document], document: Any) -> _Document:
        return configuration.parse(kind, document, CanaryError, _REMEDY)


def describe(address: str, key: str) -> Description:
    """Ask an agent for the pair in service.

    Raises:
        CanaryError: The agent refused, or is of another version.
        RequestTimeoutError: It did not answer in time.
        ServerUnavailableError: No agent answers.
    """
    with agent_client(address, key) as http:
        found = ask_agent(http, "GET", DESCRIBE)
    return configuration.parse(Description, found, CanaryError, _REMEDY)


def agent_client(address: str, key: str) -> httpx.Client:
    """Return a client of an agent."""
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    return httpx.Client(base_url=address, verify=_trusted(), trust_env=False, headers=headers)


@cache
def _trusted() -> ssl.SSLContext:
    """Read the certificates of authorities once: every look at a fleet makes a client for each server."""
    return httpx.create_ssl_context(trust_env=False)


def ask_agent(
    http: httpx.Client, method: str, path: str, body: str = "", timeout_s: float = _ANSWERS_WITHIN_S
) -> Any:
    """Send one request to an agent and return its result.

    Raises:
        DraftproofError: As the agent.
        RequestTimeoutError: It did not answer in time.
        ServerUnavailableError: No agent answers.
    """
    timeout = httpx.Timeout(_ANSWERS_WITHIN_S, read=timeout_s)
    try:
        reply = http.request(method, path, content=body, timeout=timeout)
        document = reply.json()
        if reply.status_code == httpx.codes.OK:
            return document["result"]
        failure = from_wire(document["error"])
    except httpx.TimeoutException:
        raise RequestTimeoutError(
            "the agent did not answer in time",
            values=f"{http.base_url}{path}",
            limit=f"{timeout_s:g} s",
            remedy="look at the machine; its lease ends without the controller",
        ) from None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerUnavailableError(
            "no agent answers",
            values=f"{http.base_url}{path}: {error!r}",
            limit="an agent of this version",
            remedy="start it beside the server with 'draftproof canary agent'",
        ) from None
    raise failure or ServerUnavailableError("the agent's answer cannot be read", values=str(document)[:200])
