"""Tests of rotary settings, beside the functions of transformers that compute them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.hugging_face.config import parse_network_config
from build.networks.network import NetworkConfig
from build.networks.rotary import rotary_frequencies
from pipelines.errors import CheckpointError
from tests.golden.families import rope_of
from tests.golden.make import ROPE_LENGTHS, ROPES, compute_ropes
from tests.golden.make import qwen2_config as config_of

_YARN, _LONGROPE, _LLAMA3 = ROPES["yarn"], ROPES["longrope"], ROPES["llama3"]


def parsed(config: dict[str, Any], max_seq_len: int = 1) -> NetworkConfig:
    return parse_network_config(config, Path("config.json"), max_seq_len)


@pytest.mark.parametrize("max_seq_len", ROPE_LENGTHS)
@pytest.mark.parametrize("name", ROPES)
def test_frequencies_and_magnitude_are_those_of_transformers(name: str, max_seq_len: int) -> None:
    expected, magnitude = rope_of(f"{name}-{max_seq_len}")
    rotary = parsed(config_of(ROPES[name]), max_seq_len).layers[0].rotary
    assert rotary is not None
    np.testing.assert_allclose(rotary_frequencies(rotary), expected, rtol=1e-6)
    assert magnitude == pytest.approx(1.0 if rotary.scaling is None else rotary.scaling.magnitude)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_golden_frequencies_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    for name, found in compute_ropes().items():
        expected, magnitude = rope_of(name.removeprefix("rope."))
        np.testing.assert_allclose(found, [*expected, magnitude], rtol=1e-6)


@pytest.mark.parametrize(
    ("rope", "written", "max_seq_len", "expected"),
    [
        (_LONGROPE, 131072, 4096, 4096),
        (_LONGROPE, 131072, 4097, 131072),
        (_LONGROPE, 2048, 4096, 2048),
        (_YARN, 32768, 1024, 131072),  # as Qwen's instructions write it
        (_YARN, 262144, 1024, 262144),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096, 8192, 4096),
        ({"rope_type": "linear", "factor": 2.0}, 4096, 8192, 4096),
    ],
)
def test_the_longest_context(rope: dict[str, Any], written: int, max_seq_len: int, expected: int) -> None:
    config = config_of(rope, max_position_embeddings=written)
    assert parsed(config, max_seq_len).max_position_embeddings == expected


def test_phi3_has_the_original_length_beside_the_rotary_settings() -> None:
    """Its class has 4,096 where the file has none; other classes do not read the key."""
    rope = {**_LONGROPE, "original_max_position_embeddings": 2000}
    qwen2 = config_of(rope, original_max_position_embeddings=1000)
    phi3 = {**qwen2, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
    assert parsed(qwen2, 2000).max_position_embeddings == 2000
    assert parsed(phi3, 1000).max_position_embeddings == 1000
    assert parsed(phi3, 1001).max_position_embeddings == 131072
    del phi3["original_max_position_embeddings"]
    assert parsed(phi3, 4096).max_position_embeddings == 4096


@pytest.mark.parametrize(
    ("rope", "changes", "message"),
    [
        ({**_LONGROPE, "short_factor": [1.0] * 16}, {}, "16 factors for 32 frequencies"),
        ({**_LONGROPE, "short_factor": [0.0] * 32}, {}, "not finite"),
        ({**_LONGROPE, "short_factor": None}, {}, "0 factors for 32 frequencies"),
        ({**_LONGROPE, "attention_factor": float("nan")}, {}, "attention_factor=nan"),
        ({**_YARN, "original_max_position_embeddings": -5}, {}, "original_max_position_embeddings=-5"),
        (
            {**_YARN, "original_max_position_embeddings": float("inf")},
            {},
            "original_max_position_embeddings=inf",
        ),
        ({**_YARN, "factor": float("inf"), "attention_factor": 1.0}, {}, "factor=inf"),
        ({**_LONGROPE, "short_factor": [1.0]}, {}, "1 factors for 32 frequencies"),
        ({**_YARN, "factor": "many"}, {}, "factor='many'"),
        ({"rope_type": "linear", "factor": 0.0}, {}, "factor=0.0"),
        ({"rope_type": "linear"}, {}, "factor=None"),
        (_YARN, {"rope_theta": 1}, "ZeroDivisionError"),
        (None, {"rope_theta": -1e4}, "rope_theta=-10000.0"),
        (None, {"partial_rotary_factor": 1e9}, "partial_rotary_factor=1e+09"),
        ({**_LLAMA3, "low_freq_factor": 4.0}, {}, "must be above low_freq_factor"),
        ({**_YARN, "factor": 1e9}, {}, "from 1 to 16777216"),
        ({**_YARN, "rope_type": "spiral"}, {}, "supported: default, linear, dynamic, llama3, longrope, yarn"),
    ],
)
def test_settings_without_angles_are_refused(
    rope: dict[str, Any] | None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        parsed({**config_of({}), "rope_scaling": rope, **changes})
    assert message in str(caught.value)
