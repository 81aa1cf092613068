"""Watches a server from outside: its readiness every 20 ms, its metrics every 100 ms."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from pipelines.deploy.ports import HOST, Ports

_READY_EVERY_S, _METRICS_EVERY_S = 0.02, 0.1
_TIMEOUT_S = 2.0
_SAMPLE = re.compile(r'^(draftproof_\w+)(?:\{model="([^"]*)"[^}]*\})? (\S+)$', re.MULTILINE)

HEALTH = "/v2/health/ready"

Figures = dict[tuple[str, str], float]
"""Maps a metric and a model ("" for the gateway's own) to a value."""


def ready_path(model: str) -> str:
    """Return the path of a model's readiness endpoint."""
    return f"/v2/models/{model}/ready"


class Watch:
    """Records everything a server reports while a block runs.

    Args:
        ports: The ports of the server, which may come and go.
        models: The models whose readiness is watched, besides the server's.
    """

    def __init__(self, ports: Ports, models: Sequence[str]) -> None:
        self._ports = ports
        self._stop = threading.Event()
        self._changes: dict[str, list[tuple[float, bool]]] = {
            path: [] for path in (HEALTH, *map(ready_path, models))
        }
        self.metrics: list[tuple[float, Figures]] = []
        self._threads = [
            threading.Thread(target=self._poll, args=[self._ports.http, _READY_EVERY_S, self._look]),
            threading.Thread(target=self._poll, args=[self._ports.metrics, _METRICS_EVERY_S, self._measure]),
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def is_ready(self) -> bool:
        """Return whether everything watched was ready at the last look."""
        return all(changes and changes[-1][1] for changes in self._changes.values())

    def wait(self, is_ready: bool, timeout_s: float) -> bool:
        """Wait until everything is ready, or until something is not; return False on timeout."""
        deadline_s = time.monotonic() + timeout_s
        while self.is_ready is not is_ready:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        return True

    def first_not_ready_s(self, since_s: float) -> float | None:
        """Return when something watched was first reported as not ready; None for never."""
        looks = (look for changes in self._changes.values() for look in changes)
        return min((at_s for at_s, is_ready in looks if at_s >= since_s and not is_ready), default=None)

    def longest_not_ready_s(self, since_s: float, path: str | None = None) -> float:
        """Return the longest time for which something watched, or a path, was reported as not ready."""
        watched = self._changes.values() if path is None else [self._changes[path]]
        lengths = [
            changes[index + 1][0] - at_s if index + 1 < len(changes) else time.monotonic() - at_s
            for changes in watched
            for index, (at_s, is_ready) in enumerate(changes)
            if at_s >= since_s and not is_ready
        ]
        return max(lengths, default=0.0)

    def back_s(self, path: str, since_s: float) -> float | None:
        """Return when something that had been reported as not ready was first ready again."""
        gone = [at_s for at_s, is_ready in self._changes[path] if at_s >= since_s and not is_ready]
        return next(
            (at_s for at_s, is_ready in self._changes[path] if gone and is_ready and at_s > gone[0]), None
        )

    def ready_for_good_s(self) -> float | None:
        """Return when everything watched last became ready."""
        return max(changes[-1][0] for changes in self._changes.values()) if self.is_ready else None

    def _look(self, connection: http.client.HTTPConnection) -> None:
        for path, changes in self._changes.items():
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
                is_ready = response.status == http.HTTPStatus.OK
            except (OSError, http.client.HTTPException):
                connection.close()
                is_ready = False
            if not changes or changes[-1][1] is not is_ready:
                changes.append((time.monotonic(), is_ready))

    def _measure(self, connection: http.client.HTTPConnection) -> None:
        try:
            connection.request("GET", "/metrics")
            self.metrics.append((time.monotonic(), figures(connection.getresponse().read().decode())))
        except (OSError, http.client.HTTPException):
            connection.close()

    def _poll(self, port: int, every_s: float, look: Callable[[http.client.HTTPConnection], None]) -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
        while not self._stop.wait(every_s):
            look(connection)
        connection.close()


def figures(text: str) -> Figures:
    """Parse Prometheus' text format; a model's series are summed."""
    sums: Figures = {}
    for name, model, value in _SAMPLE.findall(text):
        sums[name, model] = sums.get((name, model), 0.0) + float(value)
    return sums


def read_metrics(ports: Ports) -> Figures:
    """Return the current metrics.

    Raises:
        OSError: Nothing answers at the address.
    """
    connection = http.client.HTTPConnection(HOST, ports.metrics, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return figures(connection.getresponse().read().decode())
    finally:
        connection.close()
