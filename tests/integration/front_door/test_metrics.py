"""Tests of ``/metrics``: vLLM's names with figures of a running server, read by Prometheus' own parser."""

from __future__ import annotations

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipelines.deploy.server import Server
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, UNREAD, get, post, url_of

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

# vLLM's name -> type. The first twelve are read by dashboards of vLLM 0.32.0, the last four by gateways.
PUBLISHED = {
    "vllm:spec_decode_num_drafts": "counter",
    "vllm:spec_decode_num_draft_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens": "counter",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
}


def samples(server: Server) -> list[Sample]:
    families = list(text_string_to_metric_families(get(server, "/metrics").text))
    kinds = {family.name: family.type for family in families if family.name.startswith("vllm:")}
    assert kinds.items() <= PUBLISHED.items()
    return [sample for family in families for sample in family.samples]


def value(server: Server, name: str, **labels: str) -> float:
    """Return the only sample of a name with these labels; 0 if there is none yet."""
    found = [each for each in samples(server) if each.name == name and labels.items() <= each.labels.items()]
    assert len(found) < 2, found
    return found[0].value if found else 0.0


def test_every_name_has_the_labels_of_vllm_and_occurs_once(door: Server, api: openai.OpenAI) -> None:
    api.completions.create(model=MODEL, prompt="def area(", max_tokens=40)
    wait_until(lambda: value(door, "vllm:request_time_per_output_token_seconds_count") > 0)
    families = list(text_string_to_metric_families(get(door, "/metrics").text))
    assert {family.name: family.type for family in families if family.name.startswith("vllm:")} == PUBLISHED
    assert len({family.name for family in families}) == len(families)
    for sample in (sample for family in families for sample in family.samples):
        if sample.name.startswith("vllm:"):
            assert (sample.labels["model_name"], sample.labels["engine"]) == (MODEL, "0")
    assert any(family.name.startswith("nv_") for family in families), "Triton's own"


def test_counts_are_those_of_the_answers(door: Server, api: openai.OpenAI) -> None:
    names = {
        "prompt": "vllm:prompt_tokens_total",
        "sum": "vllm:request_generation_tokens_sum",
        "count": "vllm:request_generation_tokens_count",
        "requests": "vllm:e2e_request_latency_seconds_count",
        "all": "vllm:generation_tokens_total",
    }

    def figures() -> dict[str, float]:
        return {key: value(door, name) for key, name in names.items()}

    before = figures()
    ended = value(door, "vllm:request_success_total", finished_reason="length")
    endless = {"ignore_eos": True}  # a sample may end with the first token
    answer = api.completions.create(model=MODEL, prompt="def area(", n=2, max_tokens=30, extra_body=endless)
    usage = {"include_usage": True}
    *_, last = api.completions.create(
        model=MODEL, prompt="x", max_tokens=5, stream=True, stream_options=usage, extra_body=endless
    )
    assert answer.usage is not None and last.usage is not None
    num_prompt = 2 * answer.usage.prompt_tokens + last.usage.prompt_tokens
    expected = {"prompt": num_prompt, "sum": 65, "count": 3, "requests": 2, "all": 65}
    expected = {key: before[key] + grown for key, grown in expected.items()}
    assert wait_until(lambda: figures() == expected), (figures(), expected)
    assert value(door, "vllm:request_success_total", finished_reason="length") == ended + 3


def test_speculation_is_counted_as_on_the_metrics_port(door: Server, api: openai.OpenAI) -> None:
    api.completions.create(model=MODEL, prompt="def area(", max_tokens=60)
    assert wait_until(lambda: value(door, "vllm:spec_decode_num_draft_tokens_total") > 0)
    found = {sample.name: sample.value for sample in samples(door)}
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert found[f"spec_decode_{name}_total"] == found[f"vllm:spec_decode_{name}_total"]


def test_a_client_that_leaves_is_counted(door: Server) -> None:
    def num_left() -> float:
        return value(door, "vllm:request_success_total", finished_reason="abort")

    before = num_left()
    url = f"{url_of(door)}/v1/completions"
    with httpx.stream("POST", url, json=UNREAD, timeout=120, trust_env=False) as streamed:
        next(streamed.iter_lines())
    assert wait_until(lambda: num_left() > before)


def test_refusals_are_counted_by_path_and_status(door: Server) -> None:
    def refused() -> float:
        return value(door, "draftproof_front_door_responses_total", path="/v1/completions", status="400")

    before = refused()
    assert post(door, "/v1/completions", b"{").status_code == 400
    assert refused() == before + 1
    assert get(door, "/nowhere/at/all").status_code == 404
    assert value(door, "draftproof_front_door_responses_total", path="other", status="404") >= 1
