"""Tests that every alert of the deployment names a metric of a running server, labels included."""

from __future__ import annotations

import re
import urllib.request

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client, wait_until
from tests.support.deployment_files import alerts, selectors

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]


def series(server: Server) -> list[tuple[str, dict[str, str]]]:
    """Return name and labels of everything on the metrics port."""
    url = f"http://127.0.0.1:{server.ports.metrics}/metrics"
    with urllib.request.urlopen(url, timeout=120) as response:
        text = response.read().decode()
    found = re.findall(r"^([\w:]+)(?:\{(.*)\})? \S+$", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels))) for name, labels in found]


def test_every_selector_of_an_alert_finds_a_figure(server: Server) -> None:
    with grpc_client(server) as client:
        client.generate(CompletionRequest("def main(", max_tokens=8))
    wanted = [
        (selector.name, {matcher.name: matcher.value for matcher in selector.matchers.matchers})
        for rule in alerts().values()
        for selector in selectors(rule["expr"])
        # Prometheus' own, and those of a front door, which this server lacks (front_door/test_restart.py)
        if selector.name not in ("up", "draftproof_front_door_answers", "draftproof_arm_out")
    ]
    assert len(wanted) >= 10

    def missing() -> list[tuple[str, dict[str, str]]]:
        shown = series(server)
        return [
            (name, labels)
            for name, labels in wanted
            if not any(name == known and labels.items() <= own.items() for known, own in shown)
        ]

    wait_until(lambda: not missing())
    assert missing() == []
