"""Lists the Prometheus metrics that Draftproof publishes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import Metric

from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.router.arms import ArmTable, Bands
from pipelines.router.metrics import ArmMetrics
from pipelines.triton.gateway.metrics import GatewayMetrics
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.upstreams.metrics import RolloutPhase

_PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
_SOURCE_OF_MODELS = _PIPELINES / "triton" / "backend" / "gauges.py"


def metrics() -> str:
    """Return one row for each metric, by the process that publishes it."""
    lines = ["| Metric | Published by | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | models | {words} |" for name, words in _of_models()]
    lines += [f"| `{name}` | gateway | {words} |" for name, words in _of_gateway()]
    lines += [f"| `{name}` | front door | {words} |" for name, words in _of_front_door()]
    lines += [f"| `{name}` | front door, upstreams | {words} |" for name, words in _of_arms()]
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
    model: Any = SimpleNamespace(name="", max_seq_len=1)
    fleet: Any = SimpleNamespace(servers={}, num_resumed=0)
    return _named((*MetricsPage(model)._registry.collect(), *Fleet.collect(fleet)))


def _of_arms() -> list[tuple[str, str]]:
    """Ask their collector, and that of a rollout of which nothing is known."""
    table = ArmTable.without_rollout("server", Bands(2, 3))
    arms = ArmMetrics(lambda: table, lambda arm: False, int)
    return _named((*arms.collect(), *RolloutPhase(str).collect()))


def _named(families: Iterable[Metric]) -> list[tuple[str, str]]:
    return sorted(
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in families
    )
