"""Counts and times the requests of the front door under vLLM's names, for dashboards that were made for vLLM.

Source: ``vllm/v1/metrics/loggers.py`` of vLLM 0.32.0.
"""

from __future__ import annotations

from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Histogram

from pipelines.front_door.observing.exchange import Exchange

LABELS = ("model_name", "engine")
ENGINE = "0"
"""Value of vLLM's label ``engine``: this server is one engine to its clients."""

_ENDINGS = ("stop", "length", "abort", "error")
# vLLM's buckets, with finer ones below: small models answer within milliseconds.
_LATENCY_BUCKETS = (
    *(0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0),
)
_INTERVAL_BUCKETS = (
    *(
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        40.0,
        80.0,
    ),
)


class RequestMetrics:
    """The metrics of the requests that arrive at the front door.

    Args:
        registry: Where they are published.
        model_name: Value of vLLM's label ``model_name``.
        max_seq_len: Most tokens of prompt and answer together.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, max_seq_len: int) -> None:
        of_model = {"model_name": model_name, "engine": ENGINE}
        sizes = [size for size in _SIZES if size < max_seq_len] + [max_seq_len]
        self._responses = Counter(
            "draftproof_front_door_responses",
            "Responses, by path and status",
            ("path", "status"),
            registry=registry,
        )
        success = Counter(
            "vllm:request_success",
            "Answers, by how they ended",
            (*LABELS, "finished_reason"),
            registry=registry,
        )
        self._success = {each: success.labels(**of_model, finished_reason=each) for each in _ENDINGS}
        self._prompt_tokens = Counter(
            "vllm:prompt_tokens", "Tokens of the prompts", LABELS, registry=registry
        ).labels(**of_model)
        self._request_prompt_tokens = Histogram(
            "vllm:request_prompt_tokens", "Tokens of a prompt", LABELS, buckets=sizes, registry=registry
        ).labels(**of_model)
        self._request_generation_tokens = Histogram(
            "vllm:request_generation_tokens",
            "Output tokens of an answer",
            LABELS,
            buckets=sizes,
            registry=registry,
        ).labels(**of_model)
        self._latency_s = Histogram(
            "vllm:e2e_request_latency_seconds",
            "Time from a request's arrival to the end of its response",
            LABELS,
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        ).labels(**of_model)
        self._interval_s = Histogram(
            "vllm:inter_token_latency_seconds",
            "Time between two chunks of a stream; a chunk has several tokens",
            LABELS,
            buckets=_INTERVAL_BUCKETS,
            registry=registry,
        ).labels(**of_model)

    def observe(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        self._responses.labels(exchange.path or "other", str(exchange.status)).inc()
        for answer in exchange.answers:
            self._success[exchange.ending(answer)].inc()
            self._prompt_tokens.inc(len(answer.request.prompt_ids))
            if answer.finish_reason:
                self._request_prompt_tokens.observe(len(answer.request.prompt_ids))
                self._request_generation_tokens.observe(answer.num_output_tokens)
            for before_s, after_s in pairwise(each.at_s for each in answer.arrivals):
                self._interval_s.observe(after_s - before_s)
        if exchange.answers and all(answer.finish_reason for answer in exchange.answers):
            self._latency_s.observe(exchange.ended_s - exchange.began_s)


_SIZES = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
