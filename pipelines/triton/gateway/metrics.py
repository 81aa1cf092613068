"""Serves Triton's metrics, without stale values of models that do not answer, and the gateway's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.triton.gateway.http_server import errors_in_json
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.relay import Relay
from pipelines.triton.supervision.front_door_process import FrontDoorProcess
from pipelines.triton.supervision.supervisor import Supervisor
from pipelines.web_application import guarded_application, metrics_page

_OF_A_MODEL = re.compile(rb'^(?:draftproof_|vllm:)\w+\{[^}]*\bmodel="(?P<model>[^"]*)"')


def application(
    relay: Relay, front_door: FrontDoorProcess | None, hosts: Collection[str] = ()
) -> web.Application:
    """Return the application for the metrics port.

    Args:
        relay: Whose requests and models are counted.
        front_door: None for a server without it.
        hosts: Names by which the server is asked besides its addresses.
    """
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(relay.supervisor, relay.calls, front_door))

    async def read() -> bytes:
        published = (await relay.triton.metrics()).encode()
        return without(published, relay.supervisor.unanswering) + generate_latest(registry)

    metrics = guarded_application(errors_in_json, hosts=hosts)
    metrics.router.add_get("/metrics", metrics_page(read))
    return metrics


def without(text: bytes, models: set[str]) -> bytes:
    """Remove the metrics that some models published themselves; Triton's metrics of them stay.

    Args:
        text: Metrics in Prometheus' format.
        models: Models whose values are stale.
    """
    frozen = {model.encode() for model in models}
    kept = []
    for line in text.splitlines(keepends=True):
        found = _OF_A_MODEL.match(line)
        if found is None or found["model"] not in frozen:
            kept.append(line)
    return b"".join(kept)


class GatewayMetrics(Collector):
    """Collects the gateway's own metrics.

    Args:
        supervisor: State of Triton and its models.
        calls: Tracks open requests.
        front_door: None for a server without it.
    """

    def __init__(self, supervisor: Supervisor, calls: OpenCalls, front_door: FrontDoorProcess | None) -> None:
        self._supervisor = supervisor
        self._calls = calls
        self._front_door = front_door

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its current values."""
        supervisor, calls, front_door = self._supervisor, self._calls, self._front_door
        is_up = "1 while the model's process is alive and answers"
        answers = GaugeMetricFamily("draftproof_model_answers", is_up, labels=["model"])
        unanswering = supervisor.unanswering
        for model in supervisor.models:
            answers.add_metric([model], float(model not in unanswering))
        yield answers
        why = "Model processes replaced because they ended or hung"
        replaced = CounterMetricFamily("draftproof_model_replaced", why, labels=["model"])
        for model, number in sorted(supervisor.num_replaced.items()):
            replaced.add_metric([model], number)
        yield replaced
        yield CounterMetricFamily("draftproof_triton_restarts", "Restarts of Triton", supervisor.num_restarts)
        yield GaugeMetricFamily("draftproof_gateway_requests_open", "Open requests", calls.num_open)
        refused = "Requests refused because too many were open"
        yield CounterMetricFamily("draftproof_gateway_requests_refused", refused, calls.num_refused)
        if front_door is not None:
            is_up = "1 while the process of OpenAI's API answers"
            yield GaugeMetricFamily("draftproof_front_door_answers", is_up, float(front_door.answers))
            restarts = "Restarts of the process of OpenAI's API"
            yield CounterMetricFamily("draftproof_front_door_restarts", restarts, front_door.num_restarts)
