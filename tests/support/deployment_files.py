"""Reads the files in ``deploy/``: compose, manifests of Kubernetes, and Prometheus' expressions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.conftest import REPOSITORY_ROOT

DEPLOY = REPOSITORY_ROOT / "deploy"
CODE = "/opt/draftproof/code"
PYTHON = "/opt/draftproof/venv/bin/python"
RUN = f"{CODE}/.run/server"

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))


def kustomized(folder: str) -> list[Document]:
    """Return what ``kubectl apply --kustomize`` sends, without a cluster."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    command = [program, "kustomize", str(DEPLOY / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(found: list[Document], kind: str, name: str = "draftproof") -> Document:
    [document] = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return document


def pod(workload: Document) -> Document:
    return dict(workload["spec"]["template"]["spec"])


def box(spec: Document, name: str) -> Document:
    """Return a container of a pod."""
    [found] = [each for each in spec["containers"] if each["name"] == name]
    return dict(found)


def environment(container: Document) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", ())}


def command(container: Document) -> list[str]:
    """Return a container's command with its variables, as Kubernetes puts them in."""
    values = environment(container)
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in container["command"]]


def compose(**values: str) -> Document:
    """Return the compose file with the values of an environment; others have their defaults."""
    text = (DEPLOY / "compose.yaml").read_text()
    used = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: values.get(match[1], match[2]), text)
    assert "${" not in used
    return dict(yaml.safe_load(used))


def alerts() -> dict[str, Document]:
    [document] = documents(DEPLOY / "prometheus" / "alerts.yml")
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
