"""Serves Triton's metrics, without stale values of models that do not answer, and the gateway's own."""

from __future__ import annotations

import re

from aiohttp import web

from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import Triton
from pipelines.triton.supervision.front_door_process import FrontDoorProcess
from pipelines.triton.supervision.supervisor import Supervisor

_OF_A_MODEL = re.compile(rb'^(?:draftproof|spec_decode)_\w+\{[^}]*\bmodel="(?P<model>[^"]*)"')


def application(
    triton: Triton, supervisor: Supervisor, calls: OpenCalls, front_door: FrontDoorProcess | None
) -> web.Application:
    """Return the application for the metrics port; ``front_door`` is None for a server without it."""

    async def answer(request: web.Request) -> web.Response:
        published = (await triton.metrics()).encode()
        text = without(published, supervisor.unanswering) + own(supervisor, calls, front_door).encode()
        return web.Response(body=text, headers={"Content-Type": "text/plain; charset=utf-8"})

    metrics = web.Application()
    metrics.router.add_get("/metrics", answer)
    return metrics


def without(text: bytes, models: set[str]) -> bytes:
    """Remove the metrics that some models published themselves; Triton's metrics of them stay.

    Args:
        text: Metrics in Prometheus' format.
        models: Models whose values are stale.
    """
    if not models:
        return text
    frozen = {model.encode() for model in models}
    kept = []
    for line in text.splitlines(keepends=True):
        found = _OF_A_MODEL.match(line)
        if found is None or found["model"] not in frozen:
            kept.append(line)
    return b"".join(kept)


def own(supervisor: Supervisor, calls: OpenCalls, front_door: FrontDoorProcess | None) -> str:
    """Return the gateway's own metrics in Prometheus' format."""
    unanswering = supervisor.unanswering
    figures: list[tuple[str, str, str, dict[str, float]]] = [
        (
            "draftproof_model_answers",
            "gauge",
            "1 while the model's process is alive and answers",
            {f'{{model="{model}"}}': float(model not in unanswering) for model in supervisor.models},
        ),
        (
            "draftproof_model_replaced_total",
            "counter",
            "Model processes replaced because they ended or hung",
            {f'{{model="{model}"}}': count for model, count in sorted(supervisor.num_replaced.items())},
        ),
        (
            "draftproof_triton_restarts_total",
            "counter",
            "Restarts of Triton",
            {"": supervisor.num_restarts},
        ),
        ("draftproof_gateway_requests_open", "gauge", "Open requests", {"": calls.num_open}),
        (
            "draftproof_gateway_requests_refused_total",
            "counter",
            "Requests refused because too many were open",
            {"": calls.num_refused},
        ),
    ]
    if front_door is not None:
        figures += [
            (
                "draftproof_front_door_answers",
                "gauge",
                "1 while the process of OpenAI's API answers",
                {"": float(front_door.answers)},
            ),
            (
                "draftproof_front_door_restarts_total",
                "counter",
                "Restarts of the process of OpenAI's API",
                {"": front_door.num_restarts},
            ),
        ]
    lines = []
    for name, kind, description, values in figures:
        lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value:g}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
