"""Publishes the phase of a rollout for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.errors import CanaryError

_LOG = logging.getLogger(__name__)


class RolloutPhase(Collector):
    """The phase of the latest rollout.

    Args:
        phase: Returns it, "" without a rollout; called on a thread.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self._phase = phase

    def collect(self) -> Iterator[Metric]:
        """Yield the phase."""
        words = "Phase of the latest rollout, as a label; always 1"
        family = GaugeMetricFamily("draftproof_rollout_phase", words, labels=("phase",))
        try:
            if found := self._phase():
                family.add_metric((found,), 1)
        except CanaryError as error:  # the other metrics are as good as before
            _LOG.warning("the phase of the rollout cannot be read: %s", error)
        yield family
