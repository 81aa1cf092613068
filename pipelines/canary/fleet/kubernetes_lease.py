"""A Lease of Kubernetes, which only one controller holds.

Clocks are not compared. Who waits measures by its own clock for how long the Lease has not changed; who holds
it counts from before the request that renewed it last, and gives up sooner than anyone may take it over.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx

from pipelines.errors import CanaryError, ServerUnavailableError

DURATION_S = 15.0
"""Time without a change after which another controller takes the Lease over."""

_GIVES_UP_AFTER_S = 10.0
_RETRY_S = 2.0
_ANSWERS_WITHIN_S = 3.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_LOG = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Another controller may hold the Lease now.

    It is none of Draftproof's errors, because a controller takes those for faults of the candidate.
    """


class LeaseApi:
    """One Lease in the API of Kubernetes, as the service account of this pod may reach it.

    Args:
        name: Name of the Lease.
        url: Address of the API.
        account: Folder with ``token``, ``ca.crt`` and ``namespace``.

    Raises:
        CanaryError: This is no pod with a service account.
    """

    def __init__(self, name: str, url: str, account: Path = _ACCOUNT) -> None:
        self._token = account / "token"
        try:
            trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
            namespace = (account / "namespace").read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise _refused(f"{account}: {error}", "a pod with a service account") from None
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self._http = httpx.Client(base_url=url, verify=trusted, trust_env=False, timeout=_ANSWERS_WITHIN_S)

    @classmethod
    def of_pod(cls, name: str) -> LeaseApi:
        """Return a Lease in the namespace of this pod.

        Raises:
            CanaryError: This is no pod with a service account.
        """
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise _refused("KUBERNETES_SERVICE_HOST is not set", "a pod; leave lease out elsewhere")
        return cls(name, f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def read(self) -> dict[str, Any]:
        """Return the Lease.

        Raises:
            CanaryError: The API refuses.
            ServerUnavailableError: It does not answer.
        """
        found: dict[str, Any] = self._ask("GET")
        return found

    def replace(self, lease: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the Lease that was read; None if it has changed since.

        Raises:
            CanaryError: The API refuses.
            ServerUnavailableError: It does not answer.
        """
        found: dict[str, Any] | None = self._ask("PUT", lease)
        return found

    def _ask(self, method: str, body: dict[str, Any] | None = None) -> Any:
        try:
            token = self._token.read_text(encoding="ascii").strip()  # it is exchanged while we run
            headers = {"Authorization": f"Bearer {token}"}
            reply = self._http.request(method, self._path, json=body, headers=headers)
            if reply.status_code == httpx.codes.CONFLICT:
                return None
            if reply.is_client_error and reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
                raise _refused(
                    f"HTTP {reply.status_code} for {method} {self._path}: {reply.text[:200]}",
                    "the Lease and the rights in rollout.yaml",
                )
            return reply.raise_for_status().json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ServerUnavailableError(
                "the API of Kubernetes does not answer",
                values=f"{method} {self._path}: {error!r}",
                limit=f"an answer within {_ANSWERS_WITHIN_S:g} s",
                remedy="look at the cluster; without its Lease a controller decides nothing",
            ) from None


@dataclass(frozen=True)
class Times:
    """Times of a Lease in seconds, each shorter than the one before.

    Attributes:
        duration_s: Time without a change after which another controller takes it over.
        gives_up_after_s: Time after which its holder stops if it was not renewed.
        retry_s: Time between renewals.
    """

    duration_s: float = DURATION_S
    gives_up_after_s: float = _GIVES_UP_AFTER_S
    retry_s: float = _RETRY_S


class Lease:
    """Acquires, renews and releases a Lease.

    Args:
        api: The Lease.
        times: Its times.
    """

    def __init__(self, api: LeaseApi, times: Times = Times()) -> None:
        self._api = api
        self._times = times
        self._me = f"{socket.gethostname()}_{secrets.token_hex(8)}"
        self._ends = threading.Event()
        self._is_lost = False
        self._renewed_at_s = 0.0
        self._known: dict[str, Any] = {}

    @contextmanager
    def held(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the Lease during a block; waits until no other controller does.

        Args:
            say: Called with the holder that it waits for.

        Raises:
            CanaryError: The API refuses.
        """
        self._acquire(say)
        renewing = threading.Thread(target=self._renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._ends.set()
            renewing.join()
            self._release()

    def check(self) -> None:
        """Check that no other controller can hold the Lease.

        Raises:
            LeaseLostError: One can.
        """
        waited_s = time.monotonic() - self._renewed_at_s
        if self._is_lost or waited_s > self._times.gives_up_after_s:
            self._is_lost = True  # also if it is renewed now: another one may have had it meanwhile
            raise LeaseLostError(f"the Lease was renewed {waited_s:.1f} s ago, or another controller has it")

    def _acquire(self, say: Callable[[str], None]) -> None:
        seen, seen_at_s, said = "", 0.0, ""
        while True:
            try:
                lease = self._api.read()
                now_s = time.monotonic()
                spec = lease.get("spec") or {}
                holder, version = spec.get("holderIdentity") or "", lease["metadata"]["resourceVersion"]
                if version != seen:
                    seen, seen_at_s = version, now_s
                is_free = holder in ("", self._me) or now_s - seen_at_s > self._duration_of(spec)
                if is_free and self._put(lease, now_s, is_new=holder != self._me):
                    return
                if not is_free and holder != said:
                    say(holder)
                    said = holder
            except ServerUnavailableError as error:
                _LOG.warning("%s", error)
            time.sleep(self._times.retry_s)

    def _duration_of(self, spec: dict[str, Any]) -> float:
        """Return after which time without a change the Lease is free; its holder has said so."""
        return max(float(spec.get("leaseDurationSeconds") or 0), self._times.duration_s)

    def _renew(self) -> None:
        while not self._ends.wait(self._times.retry_s):
            try:
                began_s = time.monotonic()
                if self._put(self._known, began_s, is_new=False):
                    continue
                lease = self._api.read()  # something else has changed it, or an answer was lost
                if (lease.get("spec") or {}).get("holderIdentity") != self._me:
                    self._is_lost = True
                    return
                self._known = lease
            except (ServerUnavailableError, CanaryError) as error:
                _LOG.warning("%s", error)

    def _put(self, lease: dict[str, Any], now_s: float, *, is_new: bool) -> bool:
        spec = dict(lease.get("spec") or {})
        spec |= {
            "holderIdentity": self._me,
            "leaseDurationSeconds": max(1, round(self._times.duration_s)),
            "renewTime": _now(),
        }
        if is_new:
            spec |= {"acquireTime": _now(), "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        found = self._api.replace({**lease, "spec": spec})
        if found is None:
            return False
        self._known, self._renewed_at_s = found, now_s
        return True

    def _release(self) -> None:
        if self._is_lost:
            return
        spec = {name: value for name, value in self._known["spec"].items() if name != "holderIdentity"}
        try:
            self._api.replace({**self._known, "spec": spec})
        except (ServerUnavailableError, CanaryError) as error:
            _LOG.warning("%s", error)  # it ends by itself


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _refused(values: str, limit: str) -> CanaryError:
    return CanaryError(
        "the Lease of the rollout cannot be used",
        values=values,
        limit=limit,
        remedy="apply rollout.yaml of the fleet; nothing was changed",
    )
