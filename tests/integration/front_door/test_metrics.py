"""Tests of ``/metrics``: vLLM's names with figures of a running server, and every panel of the dashboard."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipelines.deploy.server import Server
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, UNREAD, get, post, url_of
from tests.support.deployment_files import DEPLOY, grouped_labels, selectors

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

# vLLM's names by type. Those up to e2e latency are read by dashboards of vLLM 0.32.0, the gauges by gateways.
PUBLISHED = {
    "counter": {
        *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
        *("spec_decode_num_accepted_tokens_per_pos", "prompt_tokens", "generation_tokens", "request_success"),
        *("prefix_cache_queries", "prefix_cache_hits"),
    },
    "histogram": {
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
        *("request_time_per_output_token_seconds", "request_prompt_tokens", "request_generation_tokens"),
    },
    "gauge": {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"},
}


def samples(server: Server) -> list[Sample]:
    families = text_string_to_metric_families(get(server, "/metrics").text)
    return [sample for family in families for sample in family.samples]


def value(server: Server, name: str, **labels: str) -> float:
    """Return the only sample of a name with these labels; 0 if there is none yet."""
    found = [each for each in samples(server) if each.name == name and labels.items() <= each.labels.items()]
    assert len(found) < 2, found
    return found[0].value if found else 0.0


@pytest.fixture(scope="module")
def used(door: Server) -> Server:
    """Return the server after whole and streamed answers, which fill all metrics."""
    for stream in (False, True):
        body = {"prompt": "def area(", "max_tokens": 60, "stream": stream}
        assert post(door, "/v1/completions", body).status_code == 200
    return door


def test_every_name_has_the_labels_of_vllm_and_occurs_once(used: Server) -> None:
    assert wait_until(lambda: value(used, "vllm:request_time_per_output_token_seconds_count") > 0)
    families = list(text_string_to_metric_families(get(used, "/metrics").text))
    for kind, names in PUBLISHED.items():
        found = {each.name for each in families if each.name.startswith("vllm:") and each.type == kind}
        assert found == {f"vllm:{name}" for name in names}
    assert len({family.name for family in families}) == len(families)
    for sample in samples(used):
        if sample.name.startswith("vllm:"):
            assert (sample.labels["model_name"], sample.labels["engine"]) == (MODEL, "0")
    assert any(family.name.startswith("nv_") for family in families), "Triton's own"
    at_once = {sample.name: sample.value for sample in samples(used)}
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert at_once[f"vllm:spec_decode_{name}_total"] > 0
    assert 0 <= at_once["vllm:kv_cache_usage_perc"] < 1


def test_counts_are_those_of_the_answers(door: Server, api: openai.OpenAI) -> None:
    names = {
        "prompt": "vllm:prompt_tokens_total",
        "sum": "vllm:request_generation_tokens_sum",
        "count": "vllm:request_generation_tokens_count",
        "requests": "vllm:e2e_request_latency_seconds_count",
        "all": "vllm:generation_tokens_total",
    }

    def figures() -> dict[str, float]:
        ended = value(door, "vllm:request_success_total", finished_reason="length")
        return {"ended": ended, **{key: value(door, name) for key, name in names.items()}}

    before = figures()
    endless = {"ignore_eos": True}  # a sample may end with the first token
    answer = api.completions.create(model=MODEL, prompt="def area(", n=2, max_tokens=30, extra_body=endless)
    usage = {"include_usage": True}
    *_, last = api.completions.create(
        model=MODEL, prompt="x", max_tokens=5, stream=True, stream_options=usage, extra_body=endless
    )
    assert answer.usage is not None and last.usage is not None
    num_prompt = 2 * answer.usage.prompt_tokens + last.usage.prompt_tokens
    grown = {"ended": 3, "prompt": num_prompt, "sum": 65, "count": 3, "requests": 2, "all": 65}
    expected = {key: before[key] + number for key, number in grown.items()}
    assert wait_until(lambda: figures() == expected), (figures(), expected)


def test_clients_that_leave_and_refusals_are_counted(door: Server) -> None:
    def num_left() -> float:
        return value(door, "vllm:request_success_total", finished_reason="abort")

    def refused() -> float:
        return value(door, "draftproof_front_door_responses_total", path="/v1/completions", status="400")

    before = num_left()
    url = f"{url_of(door)}/v1/completions"
    with httpx.stream("POST", url, json=UNREAD, timeout=120, trust_env=False) as streamed:
        next(streamed.iter_lines())
    assert wait_until(lambda: num_left() > before)
    before = refused()
    assert post(door, "/v1/completions", b"{").status_code == 400
    assert wait_until(lambda: refused() == before + 1)
    assert get(door, "/nowhere/at/all").status_code == 404
    lost = {"path": "other", "status": "404"}
    assert wait_until(lambda: value(door, "draftproof_front_door_responses_total", **lost) >= 1)


BY_PROMETHEUS = {"instance", "job"}  # labels that it adds


def expressions() -> dict[str, str]:
    """Return title -> expression of every panel, with Grafana's variables replaced."""
    document: dict[str, Any] = json.loads((DEPLOY / "grafana" / "draftproof.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$__rate_interval", "5m")
        .replace("$instance", ".*")
        for panel in document["panels"]
        for target in panel.get("targets", ())
    }


def faults(known: dict[str, set[str]]) -> list[str]:
    """Return what panels ask for and no sample has, given the labels of every name."""
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


def test_every_panel_of_the_dashboard_finds_its_metrics(used: Server) -> None:
    def known() -> dict[str, set[str]]:
        return {sample.name: set(sample.labels) for sample in samples(used)}

    assert len(expressions()) > 25
    assert wait_until(lambda: not faults(known())), faults(known())
    others = known()
    del others["vllm:kv_cache_usage_perc"]
    others["draftproof_output_tokens_total"] -= {"source"}
    assert faults(others) == [
        "KV cache in use A: no metric vllm:kv_cache_usage_perc",
        "Output tokens by source A: draftproof_output_tokens_total has no label source",
    ]
