"""Lists the Prometheus metrics that Draftproof publishes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Metric

from pipelines.front_door.observing.metrics import RequestMetrics
from pipelines.router.arms import ArmTable, Bands
from pipelines.router.metrics import ArmMetrics
from pipelines.triton.gateway.metrics import GatewayMetrics
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.upstreams.metrics import UpstreamMetrics

_PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
_SOURCE_OF_MODELS = _PIPELINES / "triton" / "backend" / "gauges.py"


def metrics() -> str:
    """Return one row for each metric, by the process that publishes it."""
    lines = ["| Metric | Published by | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | models | {words} |" for name, words in _of_models()]
    lines += [f"| `{name}` | gateway | {words} |" for name, words in _of_gateway()]
    lines += [f"| `{name}` | front door | {words} |" for name, words in _of_front_door()]
    for name, words in _of_upstreams():
        publishers = "upstreams" if "_upstreams_" in name else "front door, upstreams"
        lines.append(f"| `{name}` | {publishers} | {words} |")
    return "\n".join(lines)


def _of_models() -> list[tuple[str, str]]:
    """Read the dictionary of descriptions; importing the module would need Triton's Python backend."""
    for node in ast.parse(_SOURCE_OF_MODELS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_DESCRIPTIONS":
            found: dict[str, str] = ast.literal_eval(node.value)
            return sorted(found.items())
    raise KeyError(f"no _DESCRIPTIONS in {_SOURCE_OF_MODELS}")


def _of_gateway() -> list[tuple[str, str]]:
    """Ask its collector, for a server of which nothing is known."""
    server: Any = SimpleNamespace(unanswering=set(), models=(), num_replaced={}, num_restarts=0)
    calls: Any = SimpleNamespace(num_open=0, num_refused=0)
    front_door: Any = SimpleNamespace(answers=True, num_restarts=0)
    return _named(GatewayMetrics(server, calls, front_door).collect())


def _of_front_door() -> list[tuple[str, str]]:
    """Ask its registry, and a fleet without servers."""
    registry = CollectorRegistry()
    RequestMetrics(registry, "", 1)
    fleet: Any = SimpleNamespace(servers={}, num_resumed=0)
    return _named((*registry.collect(), *Fleet.collect(fleet)))


def _of_upstreams() -> list[tuple[str, str]]:
    """Ask its registry, for a rollout of which nothing is known."""
    registry = CollectorRegistry()
    table = ArmTable.without_rollout("server", Bands(2, 3))
    UpstreamMetrics(ArmMetrics(lambda: table, lambda arm: False, int), str, registry)
    return _named(registry.collect())


def _named(families: Iterable[Metric]) -> list[tuple[str, str]]:
    return sorted(
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in families
    )
