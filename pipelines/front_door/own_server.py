"""Answers requests with the engines of this machine, through the router in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.front_door.served_model import ServedModel
from pipelines.router.arms import Arm
from pipelines.router.observation import unix_time_s
from pipelines.router.preprocessing import Preprocessing
from pipelines.router.router import Router
from pipelines.socket_path import is_listening
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


class OwnServer(Collector):
    """The engines of this machine (``RouterCalls``). Used on one event loop.

    Attributes:
        max_requests: Most requests that the pair answers or keeps waiting at a time; it refuses others.

    Args:
        model: The model.
        settings: Parameters of the model ``router`` (``rendered_parameters``).
        timeout_s: Longest time of an answer in seconds; None for as long as its engine lives.
    """

    def __init__(
        self, model: ServedModel, settings: Mapping[str, str], timeout_s: float | None = None
    ) -> None:
        self.max_requests = model.max_requests
        self._timeout_us = 0 if timeout_s is None else max(1, round(1e6 * timeout_s))
        preprocessing = Preprocessing(model.tokenizer, model.max_seq_len)
        self._router = Router.of(settings.__getitem__, preprocessing, in_rollouts=True)

    async def close(self) -> None:
        """Stop replays and write the last observations."""
        await self._router.close()
        await asyncio.to_thread(self._router.log.close)

    async def is_ready(self) -> bool:
        """Return whether a process takes requests: in a rollout, that of the candidate may stand in."""
        table = self._router.routing.table
        return any(is_listening(Path(socket)) for socket in (table.stable, table.candidate) if socket)

    def stream(self, request: CompletionRequest, *, streaming: bool) -> AsyncGenerator[Chunk, None]:
        """Answer one request and stream its chunks; closing the generator cancels the request.

        Args:
            request: The request.
            streaming: Whether the client wants chunks as they come; otherwise there is one.

        Raises:
            DraftproofError: The request was refused, or no arm answered.
        """
        request.check()
        return self._router.answer(request, streaming=streaming, timeout_us=self._timeout_us)

    def collect(self) -> Iterator[Metric]:
        """Yield the requests of this front door by arm."""
        requests = CounterMetricFamily(
            "draftproof_front_door_arm_requests", "Requests, by arm and outcome", labels=("arm", "outcome")
        )
        for (arm, outcome), number in sorted(self._router.num_requests.items()):
            requests.add_metric((arm, outcome), number)
        fallbacks = CounterMetricFamily(
            "draftproof_front_door_fallbacks",
            "Requests that fell back to another arm, by the arm they left",
            labels=("arm",),
        )
        out = GaugeMetricFamily(
            "draftproof_front_door_arm_out", "1 while an arm is avoided because it failed", labels=("arm",)
        )
        for arm in get_args(Arm):
            fallbacks.add_metric((arm,), self._router.num_fallbacks[arm])
            out.add_metric((arm,), self._router.routing.is_out(arm))
        routing = self._router.routing
        weight = GaugeMetricFamily(
            "draftproof_front_door_arm_weight",
            "Share of the requests that is routed to an arm",
            labels=("arm",),
        )
        for arm, share in routing.table.weights(unix_time_s()).items():
            weight.add_metric((arm,), share)
        replays = CounterMetricFamily(
            "draftproof_front_door_replays",
            "Requests replayed on the candidate, or dropped for lack of room",
            labels=("kind",),
        )
        for kind, number in zip(("begun", "dropped"), routing.replays, strict=True):
            replays.add_metric((kind,), number)
        dropped = CounterMetricFamily(
            "draftproof_front_door_observations_dropped", "Observations that could not be written"
        )
        dropped.add_metric((), self._router.log.num_dropped)
        yield from (requests, fallbacks, out, weight, replays, dropped)
