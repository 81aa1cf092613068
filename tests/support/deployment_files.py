"""Recipes with different kinds of deployment, and a reader of what ``make deployment`` writes for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from build.recipe import REPOSITORY_ROOT, load_recipe
from tests.support.gpu_recipes import gpu_recipe

RECIPES = {
    "embedded": load_recipe("demo"),
    "one GPU": gpu_recipe(),
    "four GPUs": gpu_recipe(tp_size=4),
    "two machines": gpu_recipe(tp_size=16, num_nodes=2),
}


def manifests(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((directory / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def manifest(directory: Path, kind: str) -> dict[str, Any]:
    return next(document for document in manifests(directory) if document["kind"] == kind)


def pod_templates(directory: Path) -> dict[str, dict[str, Any]]:
    """Return every pod template by its role: ``server`` answers, ``ranks`` are the other machines."""
    for document in manifests(directory):
        if document["kind"] == "Deployment":
            return {"server": document["spec"]["template"]}
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            return {"server": template["leaderTemplate"], "ranks": template["workerTemplate"]}
    raise AssertionError("no pods")


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Return the container that does the pod's work; HAProxy may run beside it."""
    [only] = [each for each in template["spec"]["containers"] if each["name"] != "haproxy"]
    return dict(only)


def proxy(template: dict[str, Any]) -> dict[str, Any]:
    """Return the HAProxy container of a pod that answers clients."""
    [only] = [each for each in template["spec"]["containers"] if each["name"] == "haproxy"]
    return dict(only)


def compose(directory: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((directory / "compose.yaml").read_text()))


def user_of_the_image() -> int:
    """Return the user that every stage of the Dockerfile ends with."""
    text = (REPOSITORY_ROOT / "pipelines" / "deploy" / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    last = {re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] for stage in stages if "\nUSER" in stage}
    assert [stage.split()[2] for stage in stages] == ["environment", "server", "node"]
    assert "\nUSER" in stages[0], "the others begin with its user"
    [user] = {name.partition(":")[0] for name in last}
    assert last == {f"{user}:{user}"}
    assert f"useradd --uid {user} --gid {user} " in text
    return int(user)


def alerts(directory: Path) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((directory / "prometheus" / "alerts.yml").read_text())
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def selectors(expression: str) -> list[Any]:
    """Return every vector selector of a PromQL expression."""
    return _nodes(expression, promql_parser.VectorSelector)


def groupings(expression: str) -> list[tuple[str, ...]]:
    """Return the labels by which each aggregation of a PromQL expression groups; empty if over everything."""
    modifiers = [node.modifier for node in _nodes(expression, promql_parser.AggregateExpr)]
    assert all(each is None or "By" in str(each.type) for each in modifiers)
    return [() if each is None else tuple(each.labels) for each in modifiers]


def grouped_labels(expression: str) -> list[tuple[str, str]]:
    """Return every label by which an aggregation groups, with each metric that must have it."""
    return [
        (label, selector.name)
        for node in _nodes(expression, promql_parser.AggregateExpr)
        for label in (node.modifier.labels if node.modifier else ())
        for selector in selectors(node.expr.prettify())
    ]


def _nodes(expression: str, kind: type) -> list[Any]:
    found: list[Any] = []

    def collect(node: Any) -> None:
        if isinstance(node, kind):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), collect)
    return found
