"""The agent of a server: carries out for a controller elsewhere what a rollout does to this server.

It keeps nothing. Every call names the rollout's pairs, and what a controller has decided is in its state file
and in the server's run directory.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx

from pipelines.canary.controller.candidate import STABLE_MODEL, read_pair, remove
from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.triton_world import TritonWorld, find_in_service
from pipelines.canary.fleet.call import Call, Description, control_of
from pipelines.canary.fleet.server_name import server_name
from pipelines.canary.run_files import arms_file
from pipelines.canary.server_address import ServerAddress
from pipelines.deploy.server import find_server
from pipelines.deploy.triton.pair_record import PAIR_FILE, PairRecord
from pipelines.errors import CanaryError, InvalidRequestError, ServerUnavailableError
from pipelines.router.arms import ArmSetting, ArmTable, read_table

_ID_DIGITS = 16
_READY_TIMEOUT_S = 2.0


class Agent:
    """Carries out calls, those that change the server one after the other.

    Args:
        run_directory: Run directory of the server.
        public_key: PEM file of the key that must have signed a candidate's package; None to accept any.
        server_host: Host of a server in a container that shares the run directory with this agent; "" for one
            that was started on this machine.
    """

    def __init__(self, run_directory: Path, public_key: Path | None = None, server_host: str = "") -> None:
        self._directory = run_directory
        self._public_key = public_key
        self._server_host = server_host
        self._changing, self._writing = threading.Lock(), threading.Lock()
        self._methods: dict[str, Callable[[Call], Any]] = {
            "run": self._run,
            "preflight": self._preflight,
            "load": lambda call: self._change(call, TritonWorld.load),
            "probe": lambda call: self._change(call, TritonWorld.probe),
            "unload": self._unload,
            "keep": lambda call: self._change(call, TritonWorld.keep),
            "settle": lambda call: self._change(call, TritonWorld.settle),
            "write": self._write,
            "observations": self._observations,
            "observations_end": lambda call: self._world(call).observations_end(),
            "sample": lambda call: self._world(call).sample(),
            "listener": lambda call: self._world(call).listener(self._pair(call.candidate).socket),
        }

    def describe(self) -> Description:
        """Describe the pair in service.

        Raises:
            CanaryError: It cannot be read.
        """
        found = find_in_service(self._directory)
        pair, own = found.stable, read_pair(self._directory)
        digests = pair.draft_digest, pair.target_digest
        name = server_name(self._directory)
        return Description(name, pair.name, pair.fingerprint, own.fingerprint, *digests, found.generation)

    def carry_out(self, method: str, call: Call) -> Any:
        """Carry out a method of ``World``.

        Raises:
            InvalidRequestError: There is no such method.
            ServerUnavailableError: The call is for another server.
            DraftproofError: As the method.
        """
        if call.server and call.server != (name := server_name(self._directory)):
            raise ServerUnavailableError(
                "another server has this address",
                values=name,
                limit=call.server,
                remedy="wait; the addresses are looked up again",
            )
        if method not in self._methods:
            raise InvalidRequestError(
                "unknown method",
                values=method[:80],
                limit=", ".join(self._methods),
                remedy="run the same version of Draftproof on all machines",
            )
        return self._methods[method](call)

    def _run(self, call: Call) -> str:
        key = self._key_if_ready()
        if not key:
            raise ServerUnavailableError(
                "the server is not ready",
                values=str(self._directory),
                limit="a server that takes requests",
                remedy="wait; it is starting or draining",
            )
        found = self.describe()
        if found.fingerprint not in (call.stable, call.candidate):
            raise CanaryError(
                "this server has another pair in service than the rollout",
                values=str(found),
                limit=f"the pair {call.stable[:_ID_DIGITS]}, as the other servers",
                remedy="serve the fleet's pair here, or take the server out of the fleet",
            )
        return hashlib.sha256(key.encode()).hexdigest()[:_ID_DIGITS]

    def _key_if_ready(self) -> str:
        """Return the server's key, which is another one in each run; "" if the server is not ready."""
        if not self._server_host:
            server = find_server(self._directory)
            return server.key if server.is_ready() else ""
        address = self._address()
        try:
            reply = httpx.get(f"{address.http}/v2/health/ready", trust_env=False, timeout=_READY_TIMEOUT_S)
        except httpx.HTTPError:
            return ""
        return address.key if reply.status_code == httpx.codes.OK else ""

    def _address(self) -> ServerAddress:
        if self._server_host:
            return ServerAddress.in_container(self._directory, self._server_host)
        return ServerAddress.of(self._directory)

    def _preflight(self, call: Call) -> Outcome:
        with self._changing:
            outcome = self._world(replace(call, candidate="")).preflight()
            if not outcome.is_good:
                return outcome
            pair = self._at(outcome.evidence["socket"])
            refusal = self._refuse(call, pair)
            if refusal is not None:
                if not pair.loads_at_start:
                    remove(self._directory, pair)
                return refusal
        engines = f"draft {pair.draft_digest}, target {pair.target_digest}"
        return replace(outcome, evidence={**outcome.evidence, "socket": pair.fingerprint, "engines": engines})

    def _refuse(self, call: Call, pair: PairRecord) -> Outcome | None:
        """Return why a fleet cannot have a candidate that a server alone could have; None if it can."""
        stable = self._pair(call.stable)
        targets = [(each.target_fingerprint, each.target_digest) for each in (pair, stable)]
        if targets[0] != targets[1]:
            return Outcome(
                False,
                f"another target than the pair in service: {pair.target_digest}; a fleet continues answers "
                "on other servers, so all must have one target; exchange servers and front doors together",
                {"stable": stable.target_digest, "candidate": pair.target_digest},
            )
        own = read_pair(self._directory)
        if call.server and pair.name != own.name:
            return Outcome(
                False,
                f"its recipe has another name than the servers': {pair.name}; no server could start with it "
                f"later; give the recipe the name {own.name}, and make the package again",
                {"servers": own.name, "candidate": pair.name},
            )
        return None

    def _change(self, call: Call, change: Callable[[TritonWorld], Outcome]) -> Outcome:
        with self._changing:
            outcome = change(self._world(call))
        evidence = dict(outcome.evidence)
        if "socket" in evidence:
            evidence |= {"socket": call.candidate, "control_socket": control_of(call.candidate)}
        return replace(outcome, evidence=evidence)

    def _unload(self, call: Call) -> str:
        with self._changing:
            if self._find(call.candidate) is None:
                return "the candidate is not there"
            return self._world(call).unload()

    def _write(self, call: Call) -> None:
        assert call.table is not None
        with self._writing:
            self._check_alone(call.table)
            table = self._with_sockets(call.table, time.time() + call.lease_s)
            self._world(call).write(table)

    def _check_alone(self, table: ArmTable) -> None:
        """Refuse a controller of another rollout, and a delayed call of this one."""
        path = arms_file(self._directory)
        if not path.is_file():
            return
        now = read_table(path)
        is_other = now.canary_id not in ("", table.salt) and time.time() < now.lease_until_s
        if is_other or (now.salt == table.salt and table.generation < now.generation):
            raise CanaryError(
                "another controller has this server",
                values=f"rollout {now.canary_id or now.salt}, generation {now.generation}; "
                f"this one: {table.salt}, generation {table.generation}",
                limit="one rollout at a time, and no table older than the current one",
                remedy="end the other rollout, or wait until its lease has ended",
            )

    def _with_sockets(self, table: ArmTable, lease_until_s: float) -> ArmTable:
        def at(setting: ArmSetting) -> ArmSetting:
            name, slash, _ = setting.socket.partition("/")
            pair = self._pair(name)
            return replace(setting, socket=pair.control_socket if slash else pair.socket)

        return replace(
            table,
            stable=at(table.stable),
            candidate=at(table.candidate) if table.candidate else None,
            control=at(table.control) if table.control else None,
            lease_until_s=lease_until_s,
        )

    def _observations(self, call: Call) -> dict[str, Any]:
        found, offset = self._world(call).observations(call.offset)
        return {"lines": [each.to_line().decode() for each in found], "offset": offset}

    def _world(self, call: Call) -> TritonWorld:
        candidate = self._pair(call.candidate).socket if call.candidate else ""
        stable = self._find(call.stable)
        return TritonWorld(
            self._directory,
            self._address(),
            stable.socket if stable else call.stable,  # it may have been removed after a promotion
            call.recipe,
            call.limits,
            candidate,
            self._public_key,
        )

    def _pair(self, name: str) -> PairRecord:
        pair = self._find(name)
        if pair is None:
            raise CanaryError(
                "this server does not have a pair of the rollout",
                values=f"{name[:_ID_DIGITS]} in {self._directory}",
                limit="the pair in service and the candidate, with the engines of the other servers",
                remedy="wait until the candidate is brought up again, or copy the same package everywhere",
            )
        return pair

    def _find(self, name: str) -> PairRecord | None:
        return next((pair for pair in self._pairs() if pair.fingerprint == name), None)

    def _at(self, socket: str) -> PairRecord:
        return next(pair for pair in self._pairs() if pair.socket == socket)

    def _pairs(self) -> list[PairRecord]:
        paths = sorted((self._directory / "model_repository").glob(f"{STABLE_MODEL}*/{PAIR_FILE}"))
        return [read_pair(self._directory, path.parent.name) for path in paths]


def as_document(result: Any) -> Any:
    """Return a result of ``Agent.carry_out`` ready for JSON."""
    return asdict(result) if hasattr(result, "__dataclass_fields__") else result
