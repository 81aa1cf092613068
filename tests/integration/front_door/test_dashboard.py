"""Tests that the dashboard shows metrics of a running server, labels and groupings included."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.deploy.server import Server
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, get
from tests.support.deployment_files import DEPLOY, grouped_labels, selectors

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

BY_PROMETHEUS = {"instance", "job"}  # labels that it adds


def expressions() -> dict[str, str]:
    """Return title -> expressions of every panel, with Grafana's variables replaced."""
    document: dict[str, Any] = json.loads((DEPLOY / "grafana" / "draftproof.json").read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in document["panels"]
        for target in panel.get("targets", ())
    }
    assert len(found) > 25
    return {
        title: expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
        for title, expression in found.items()
    }


def known_labels(server: Server) -> dict[str, set[str]]:
    """Return name -> labels of every published sample."""
    families = text_string_to_metric_families(get(server, "/metrics").text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def faults(known: dict[str, set[str]]) -> list[str]:
    found = []
    for title, expression in expressions().items():
        named = {selector.name: selector for selector in selectors(expression)}
        assert named, title
        found += [f"{title}: no metric {name}" for name in named if name not in known]
        matched = [(matcher.name, name) for name, each in named.items() for matcher in each.matchers.matchers]
        found += [
            f"{title}: {name} has no label {label}"
            for label, name in matched + grouped_labels(expression)
            if label not in known.get(name, {label}) | BY_PROMETHEUS
        ]
    return found


def test_every_panel_finds_its_metrics(door: Server, api: openai.OpenAI) -> None:
    api.completions.create(model=MODEL, prompt="def area(", max_tokens=60)
    [*api.completions.create(model=MODEL, prompt="def area(", max_tokens=60, stream=True)]
    assert wait_until(lambda: not faults(known_labels(door))), faults(known_labels(door))


def test_a_metric_that_is_not_published_would_be_found(door: Server) -> None:
    known = known_labels(door)
    del known["vllm:kv_cache_usage_perc"]
    known["draftproof_output_tokens_total"] -= {"source"}
    assert faults(known) == [
        "KV cache in use A: no metric vllm:kv_cache_usage_perc",
        "Output tokens by source A: draftproof_output_tokens_total has no label source",
    ]
