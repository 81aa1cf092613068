"""Recipes that are deployed in different ways, and a reader of what ``make deployment`` writes for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from build.recipe import REPOSITORY_ROOT, load_recipe
from tests.gpu_recipes import gpu_recipe

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
    """Every pod template, by what it is for: ``server`` answers, ``ranks`` are the other machines."""
    for document in manifests(directory):
        if document["kind"] == "Deployment":
            return {"server": document["spec"]["template"]}
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            return {"server": template["leaderTemplate"], "ranks": template["workerTemplate"]}
    raise AssertionError("no pods")


def container(template: dict[str, Any]) -> dict[str, Any]:
    [only] = template["spec"]["containers"]
    return dict(only)


def compose(directory: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((directory / "compose.yaml").read_text()))


def user_of_the_image() -> int:
    """The user that every stage of the Dockerfile ends as."""
    text = (REPOSITORY_ROOT / "pipelines" / "deploy" / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    last = {re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] for stage in stages if "USER" in stage}
    assert len(stages) == 2
    assert all("USER" in stage for stage in stages)
    [user] = {name.partition(":")[0] for name in last}
    assert last == {f"{user}:{user}"}
    assert f"useradd --uid {user} --gid {user} " in text
    return int(user)


def alerts(directory: Path) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((directory / "prometheus" / "alerts.yml").read_text())
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def selectors(expression: str) -> list[Any]:
    """Every vector selector of a PromQL expression."""
    return _nodes(expression, promql_parser.VectorSelector)


def groupings(expression: str) -> list[tuple[str, ...]]:
    """Labels by which each aggregation of a PromQL expression groups; none: over all."""
    modifiers = [node.modifier for node in _nodes(expression, promql_parser.AggregateExpr)]
    assert all(each is None or "By" in str(each.type) for each in modifiers)
    return [() if each is None else tuple(each.labels) for each in modifiers]


def _nodes(expression: str, kind: type) -> list[Any]:
    found: list[Any] = []

    def collect(node: Any) -> None:
        if isinstance(node, kind):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), collect)
    return found
