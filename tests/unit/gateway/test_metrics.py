"""Tests of the metrics port: figures of silent models are left out, and the gateway adds its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, generate_latest

from pipelines.triton.gateway.metrics import GatewayMetrics, application, without
from pipelines.triton.gateway.open_calls import OpenCalls

PUBLISHED = b"""# HELP nv_inference_count Number of inferences performed
nv_inference_count{model="speculative",version="1"} 7
# HELP draftproof_running_requests Requests that run
# TYPE draftproof_running_requests gauge
draftproof_running_requests{model="speculative",version="1"} 8
draftproof_running_requests{version="1",model="speculative_0123abcd"} 2
vllm:spec_decode_num_draft_tokens_total{kind="a",model="speculative"} 3
vllm:spec_decode_num_draft_tokens_total{kind="a",model="other"} 4
"""


def supervised(*unanswering: str) -> Any:
    return SimpleNamespace(
        unanswering=set(unanswering),
        models=("generate", "speculative"),
        num_replaced={"speculative": 2},
        num_restarts=1,
    )


def test_figures_that_froze_are_left_out() -> None:
    assert without(PUBLISHED, set()) == PUBLISHED
    assert without(PUBLISHED, {"unheard_of"}) == PUBLISHED
    left = without(PUBLISHED, {"speculative"}).decode()
    assert 'nv_inference_count{model="speculative"' in left, "Triton counts them itself"
    assert 'draftproof_running_requests{model="speculative"' not in left
    assert 'vllm:spec_decode_num_draft_tokens_total{kind="a",model="speculative"' not in left
    for other in (
        'model="speculative_0123abcd"',
        'model="other"',
        "# TYPE draftproof_running_requests gauge",
    ):
        assert other in left
    assert left.count("\n") == PUBLISHED.count(b"\n") - 2


def test_the_gateway_s_own_figures() -> None:
    calls: Any = SimpleNamespace(num_open=1, num_refused=4)
    front_door: Any = SimpleNamespace(answers=True, num_restarts=3)
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(supervised("speculative"), calls, front_door))
    text = generate_latest(registry).decode()
    assert dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")) == {
        'draftproof_model_answers{model="generate"}': "1.0",
        'draftproof_model_answers{model="speculative"}': "0.0",
        'draftproof_model_replaced_total{model="speculative"}': "2.0",
        "draftproof_triton_restarts_total": "1.0",
        "draftproof_gateway_requests_open": "1.0",
        "draftproof_gateway_requests_refused_total": "4.0",
        "draftproof_front_door_answers": "1.0",
        "draftproof_front_door_restarts_total": "3.0",
    }
    without_it = GatewayMetrics(supervised(), calls, None).collect()
    assert not any("front_door" in family.name for family in without_it)


def test_they_are_published_even_while_triton_is_silent() -> None:
    async def ask(published: str) -> str:
        async def metrics() -> str:
            return published

        triton: Any = SimpleNamespace(metrics=metrics)
        relay: Any = SimpleNamespace(triton=triton, supervisor=supervised("speculative"), calls=OpenCalls())
        page = application(relay, None)
        async with TestClient(TestServer(page)) as client:
            reply = await client.get("/metrics")
            assert (reply.status, reply.content_type) == (200, "text/plain")
            assert (await client.get("/")).status == 404
            return await reply.text()

    assert "draftproof_triton_restarts_total 1" in asyncio.run(ask(""))
    both = asyncio.run(ask(PUBLISHED.decode()))
    assert "nv_inference_count" in both and "draftproof_triton_restarts_total 1" in both
    assert 'draftproof_running_requests{model="speculative"' not in both
