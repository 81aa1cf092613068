"""Lists the Prometheus metrics that Draftproof publishes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Metric

from pipelines.front_door.observing.metrics import DESCRIPTIONS, RequestMetrics
from pipelines.router.arms import ArmTable, Bands, LiveArms
from pipelines.triton.gateway.metrics import GatewayMetrics
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.upstreams.metrics import UpstreamMetrics

_PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
_SOURCE_OF_MODELS = _PIPELINES / "triton" / "backend" / "gauges.py"
_COUNTERS = ("vllm:spec_decode", "vllm:generation_tokens", "vllm:prefix_cache")


def metrics() -> str:
    """Return one row for each metric, by the process that publishes it."""
    lines = ["| Metric | Published by | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | models | {words} |" for name, words in _of_models()]
    lines += [f"| `{name}` | gateway | {words} |" for name, words in _of_gateway()]
    lines += [f"| `{name}` | front door | {words} |" for name, words in _of_front_door()]
    lines += [f"| `{name}` | upstreams | {words} |" for name, words in _of_upstreams()]
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
    """Ask its registry, and read the dictionary of the metrics that it translates."""
    registry = CollectorRegistry()
    RequestMetrics(registry, "", 1)
    fleet: Any = SimpleNamespace(servers={}, num_resumed=0)
    own = {family.name: family for family in (*registry.collect(), *Fleet.collect(fleet))}
    counters = {name for name, family in own.items() if family.type == "counter"}
    counters |= {name for name in DESCRIPTIONS if name.startswith(_COUNTERS)}
    words = {**DESCRIPTIONS, **{name: family.documentation for name, family in own.items()}}
    return sorted((f"{name}_total" if name in counters else name, each) for name, each in words.items())


def _of_upstreams() -> list[tuple[str, str]]:
    """Ask its registry, for a rollout of which nothing is known."""
    registry = CollectorRegistry()
    UpstreamMetrics(LiveArms(None, ArmTable.without_rollout("server", Bands(2, 3))), str, registry)
    return _named(registry.collect())


def _named(families: Iterable[Metric]) -> list[tuple[str, str]]:
    return sorted(
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in families
    )
