"""What probes of a new pair show, and which replica fails for which reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary import cold_start as probing
from pipelines.canary.candidate import Pair
from pipelines.canary.cold_start import ColdStart, cold_start
from pipelines.client.any_model import ModelSpec, Tensors
from pipelines.errors import CanaryError, EngineFailedError
from tests.tiny_engines import TINY_CALIBRATION, write_tokenizer

BASELINE = AcceptanceBaseline(
    num_draft_tokens=4,
    max_tokens=8,
    prompts=tuple(BaselinePrompt(name, (5, 9, number)) for number, name in enumerate(("one", "two"))),
    num_rounds=10,
    total_draft_tokens=40,
    accepted_per_position=(8, 6, 4, 2),
)
GOOD = "grpc://good:1"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    write_tokenizer(tmp_path / "tokenizer.json")
    calibration = tmp_path / "calibration.json"
    TINY_CALIBRATION.write(calibration)
    BASELINE.add_to(calibration)
    return Pair(
        name="other",
        fingerprint="0" * 64,
        runtime="embedded",
        speculative_model="speculative_00000000",
        control_model="target",
        models=("speculative_00000000",),
        socket="s",
        control_socket="t",
        draft_engine_dir="d",
        draft_fingerprint="d",
        target_engine_dir=str(tmp_path),
        target_fingerprint="t",
        max_draft_len=8,
        num_draft_tokens="adaptive",
        draft_length_file="f",
        calibration_file=str(calibration),
        num_kv_blocks={},
        gpu_bytes={},
        gpu_usable_bytes=0,
        loads_at_start=False,
    )


class Replicas:
    """Answers each probe of a replica with these counts: rounds, drafted, accepted by position."""

    def __init__(self, counts: Mapping[str, tuple[int, int, tuple[int, ...]] | None]) -> None:
        self.counts = counts
        self.asked: list[tuple[str, Tensors]] = []

    def connect(self, url: str, timeouts: object) -> Any:
        replicas = self

        class Calls:
            def describe(self, model: str) -> ModelSpec:
                assert model == "speculative_00000000"
                return ModelSpec(model, {}, {}, has_batch_dimension=True, is_decoupled=True)

            def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
                replicas.asked.append((url, inputs))
                counts = replicas.counts[url]
                if counts is None:
                    raise EngineFailedError("the device is gone")
                rounds, drafted, accepted = counts
                if not rounds:
                    return []
                return [
                    {
                        "num_rounds": np.array([[rounds]]),
                        "total_draft_tokens": np.array([[drafted]]),
                        "accepted_per_position": np.array([[*accepted, 0, 0, 0, 0]]),
                    }
                ]

            def close(self) -> None:
                pass

        return Calls()


def probed(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, **counts: tuple[int, int, tuple[int, ...]] | None
) -> ColdStart:
    replicas = Replicas({f"grpc://{name}:1": value for name, value in counts.items()})
    monkeypatch.setattr(probing, "connect_to_models", replicas.connect)
    found = cold_start(list(replicas.counts), pair)
    json.dumps(found.evidence, allow_nan=False)
    asked = [inputs for replica, inputs in replicas.asked if replica == GOOD]
    assert len(asked) == len(found.evidence["prompts"]) * ("good" in counts)
    return found


AS_MEASURED = (5, 20, (4, 3, 2, 1))  # of each of two prompts


def test_a_pair_that_is_as_it_was_measured_goes_on(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    found = probed(monkeypatch, pair, good=AS_MEASURED)
    assert found.reason == ""
    [probe] = found.probes
    assert (probe.acceptance_rate, probe.mean_acceptance_length) == (0.5, 3.0)
    assert found.evidence["baseline"] == {"acceptance_rate": 0.5, "mean_acceptance_length": 3.0}
    assert found.evidence["prompts"] == ["one", "two"]
    assert found.evidence["num_draft_tokens"] == 4


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((10, 40, (0, 0, 0, 0)), "mean acceptance length is 1.000, near 1"),
        ((100, 400, (9, 0, 0, 0)), "mean acceptance length is 1.090, near 1"),
        ((100, 0, (0, 0, 0, 0)), "its draft proposes nothing"),
        ((5, 20, (4, 3, 1, 0)), "acceptance rate is 0.400, 0.500 when the pair was measured"),
        (None, "it does not answer: the device is gone"),
        ((0, 0, ()), "no answer with counts"),
    ],
)
def test_one_bad_replica_is_enough(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, counts: tuple[int, int, tuple[int, ...]] | None, reason: str
) -> None:
    found = probed(monkeypatch, pair, good=AS_MEASURED, bad=counts)
    assert found.reason.startswith("replica grpc://bad:1: ")
    assert reason in found.reason
    assert [probe.replica for probe in found.probes] == [GOOD, "grpc://bad:1"]


def test_a_small_drop_is_left_to_the_analysis(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    assert probed(monkeypatch, pair, good=(50, 200, (36, 26, 18, 8))).reason == ""


@pytest.mark.parametrize("calibration", ["", "older"])
def test_a_pair_that_was_not_measured_is_asked_held_out_text(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, calibration: str
) -> None:
    if calibration:
        TINY_CALIBRATION.write(Path(pair.calibration_file))
    else:
        pair = dataclasses.replace(pair, calibration_file="")
    found = probed(monkeypatch, pair, good=AS_MEASURED)
    assert found.reason == ""
    assert found.evidence["baseline"] is None
    assert len(found.evidence["prompts"]) == 8
    assert probed(monkeypatch, pair, bad=(10, 40, (0, 0, 0, 0))).reason


def test_a_lower_ceiling_is_kept_and_then_not_compared(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    found = probed(monkeypatch, dataclasses.replace(pair, max_draft_len=2), good=(20, 40, (4, 1)))
    assert found.evidence["num_draft_tokens"] == 2
    assert found.evidence["baseline"] is None
    assert found.reason == ""


@pytest.mark.parametrize(("replicas", "max_draft_len"), [([], 8), ([GOOD], 0)])
def test_nothing_to_ask_is_an_error(pair: Pair, replicas: list[str], max_draft_len: int) -> None:
    with pytest.raises(CanaryError, match=r"cannot be probed; .*; .*; load"):
        cold_start(replicas, dataclasses.replace(pair, max_draft_len=max_draft_len))
