"""Lists the Prometheus metrics that Draftproof publishes."""

from __future__ import annotations

import ast
from pathlib import Path

from prometheus_client import CollectorRegistry

from pipelines.front_door.observing.fleet_metrics import FleetMetrics
from pipelines.front_door.observing.model_metrics import DESCRIPTIONS
from pipelines.front_door.observing.request_metrics import RequestMetrics
from pipelines.upstreams.metrics import UpstreamMetrics

_PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
_SOURCES = {
    "models": _PIPELINES / "triton" / "backend" / "gauges.py",
    "gateway": _PIPELINES / "triton" / "gateway" / "metrics.py",
}
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
    for node in ast.parse(_SOURCES["models"].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_DESCRIPTIONS":
            found: dict[str, str] = ast.literal_eval(node.value)
            return sorted(found.items())
    raise KeyError(f"no _DESCRIPTIONS in {_SOURCES['models']}")


def _of_gateway() -> list[tuple[str, str]]:
    """Read the tuples of name, kind, description and values."""
    tree = ast.parse(_SOURCES["gateway"].read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 4:
            name, kind, words = (
                each.value if isinstance(each, ast.Constant) else None for each in node.elts[:3]
            )
            if kind in ("counter", "gauge", "histogram"):
                found.append((str(name), str(words)))
    if not found:
        raise KeyError(f"no metrics in {_SOURCES['gateway']}")
    return sorted(found)


def _of_front_door() -> list[tuple[str, str]]:
    """Ask its registry, and read the dictionary of the metrics that it translates."""
    registry = CollectorRegistry()
    RequestMetrics(registry, "", 1)
    registry.register(FleetMetrics({}, lambda: 0))
    own = {family.name: family for family in registry.collect()}
    counters = {name for name, family in own.items() if family.type == "counter"}
    counters |= {name for name in DESCRIPTIONS if name.startswith(_COUNTERS)}
    words = {**DESCRIPTIONS, **{name: family.documentation for name, family in own.items()}}
    return sorted((f"{name}_total" if name in counters else name, each) for name, each in words.items())


def _of_upstreams() -> list[tuple[str, str]]:
    """Ask its registry, for a rollout of which nothing is known."""
    registry = CollectorRegistry()
    UpstreamMetrics(dict, str, registry)
    return sorted(
        (f"{family.name}_total" if family.type == "counter" else family.name, family.documentation)
        for family in registry.collect()
    )
