"""Loads the model ``router``, which sends each request to one of the arms."""

from __future__ import annotations

from typing import Any, get_args

from pipelines.available_resources import published_bytes
from pipelines.manifest import read_checked
from pipelines.router.arms import Arm, ArmSetting, ArmTable, Bands, LiveArms
from pipelines.router.observation_log import ObservationLog
from pipelines.router.open_requests import unix_time_s
from pipelines.router.router import Router
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.gauges import Gauges
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.model import TextModel

_OUTCOMES = ("answered", "error", "left")
_SLOW_AFTER_S = 10.0


def load_router_model(parameters: ModelParameters, backend: Any) -> TextModel:
    """Load a router that follows the table of arms; without a table, the pair of the recipe answers.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read, or is not the one for which the model was rendered.
    """
    arms = LiveArms(parameters.path("arms_file"), arms_without_rollout(parameters))
    log = ObservationLog(parameters.path("observations_file"))
    tokenizer = parameters.path("tokenizer_file")
    content = read_checked(tokenizer, parameters.text("tokenizer_sha256"))
    router = Router(arms, log, Vocabulary.parse(content, tokenizer))
    gauges = Gauges(backend, parameters.model_name)
    _watch(gauges, router)
    gauges.start()

    def close() -> None:
        log.close()
        gauges.stop()

    return TextModel(parameters, backend, router.answer, router.end, close)


def arms_without_rollout(parameters: ModelParameters) -> ArmTable:
    """Return a table with the pair of the recipe and, as a fallback and for tests, its target alone."""
    max_batch_size = parameters.integer("max_batch_size")
    return ArmTable(
        generation=0,
        canary_id="",
        salt="",
        stable=ArmSetting(parameters.text("stable_socket"), 1.0),
        candidate=None,
        control=ArmSetting(parameters.text("control_socket"), 0.0),
        shadow=None,
        replays_match="stable",
        bands=Bands(max(2, max_batch_size // 4), max(3, max_batch_size)),
        lease_until_s=0.0,
        slow_after_s=_SLOW_AFTER_S,
    )


def _watch(gauges: Gauges, router: Router) -> None:
    arms: tuple[Arm, ...] = get_args(Arm)
    gauges.add("draftproof_router_generation", lambda: router.table.generation)
    gauges.add("draftproof_memory_available_bytes", published_bytes)
    gauges.add("draftproof_router_requests_open", lambda: router.num_open)
    for number, kind in enumerate(("begun", "dropped")):
        gauges.add(
            "draftproof_router_replays_total",
            lambda number=number: router.replays[number],  # type: ignore[misc]
            kind=kind,
        )
    gauges.add("draftproof_router_observations_dropped_total", lambda: router.log.num_dropped)
    for arm in arms:
        gauges.add(
            "draftproof_router_weight",
            lambda arm=arm: router.table.weights(unix_time_s()).get(arm, 0.0),  # type: ignore[misc]
            arm=arm,
        )
        gauges.add("draftproof_router_arm_out", lambda arm=arm: router.is_out(arm), arm=arm)  # type: ignore[misc]
        gauges.add(
            "draftproof_router_fallbacks_total",
            lambda arm=arm: router.num_fallbacks[arm],  # type: ignore[misc]
            arm=arm,
        )
        for outcome in _OUTCOMES:
            gauges.add(
                "draftproof_router_requests_total",
                lambda arm=arm, outcome=outcome: router.num_requests[arm, outcome],  # type: ignore[misc]
                arm=arm,
                outcome=outcome,
            )
