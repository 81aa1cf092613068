"""Write paged attention, the operation of OpenVINO's continuous batching.

Its class is private to the Python package and its 28 inputs depend on the version, so openvino is pinned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import op as ov_op
from openvino import opset15 as ops

from build.checkpoints.tensor_file import Float32Array
from build.networks.network import NetworkConfig
from build.openvino.operations import floats, parameter
from pipelines.errors import EngineBuildError


def network_inputs() -> dict[str, Any]:
    """Return the inputs of a network but its caches; see ``build_graph``."""
    integer, long = ov.Type.i32, ov.Type.i64
    return {
        "input_ids": parameter("input_ids", [-1], long),
        "position_ids": parameter("position_ids", [-1], long),
        "past_lens": parameter("past_lens", [-1], integer),
        "subsequence_begins": parameter("subsequence_begins", [-1], integer),
        "block_indices": parameter("block_indices", [-1], integer),
        "block_indices_begins": parameter("block_indices_begins", [-1], integer),
        "max_context_len": parameter("max_context_len", [], integer),
        "logits_rows": parameter("logits_rows", [-1], integer),
    }


class PagedAttention:
    """OpenVINO's attention, without ALiBi, sinks or eviction; its plugin chooses the type of the caches.

    Args:
        config: Settings of the network.

    Raises:
        EngineBuildError: The network needs attention of our own.
    """

    def __init__(self, config: NetworkConfig) -> None:
        if config.own_attention_reason is not None:  # the preflight of a recipe says it before
            raise EngineBuildError(
                f"OpenVINO's attention cannot compute {config.own_attention_reason}",
                "set 'attention: draftproof' in the recipe",
            )
        self._config = config

    def cache(self, name: str) -> Any:
        """Return the input for the keys, or the values, of a layer."""
        return parameter(name, [-1, -1, -1, -1], ov.Type.dynamic)

    def attend(
        self,
        query_key_value: list[Any],
        caches: list[Any],
        inputs: dict[str, Any],
        window: int,
        sinks: Float32Array | None,
    ) -> Any:
        """Attend to a cache.

        Args:
            query_key_value: [T, heads * size], [T, kv_heads * size] twice.
            caches: Inputs for the keys and the values.
            inputs: See ``network_inputs``.
            window: Number of latest positions that a token attends to, its own included; 0 for all.
            sinks: float32 [heads], see ``Layer``; always None here.

        Returns:
            [T, heads * size].
        """
        config = self._config

        def empty(dtype: Any, rank: int = 1) -> Any:
            return ops.constant(np.zeros((0,) * rank, dtype))

        def zero() -> Any:
            return ops.constant(np.int32(0))

        integer, real = np.int32, np.float32
        arguments = [
            *query_key_value,
            *caches,
            inputs["past_lens"],
            inputs["subsequence_begins"],
            inputs["block_indices"],
            inputs["block_indices_begins"],
            floats(config.attention_scale),
            ops.constant(np.int32(window)),  # sliding_window
            empty(real),  # alibi_slopes
            inputs["max_context_len"],
            empty(integer),  # score_aggregation_window
            empty(integer),  # rotated_block_indices
            empty(integer),  # rotation_deltas
            empty(real),  # rotation_trig_lut
            empty(real),  # xattention_threshold
            zero(),  # xattention_block_size
            zero(),  # xattention_stride
            empty(real, 4),  # sinks
            zero(),  # adaptive_rkv_start_size
            empty(integer),  # adaptive_rkv_evictable_sizes
            empty(integer),  # adaptive_rkv_diversity_block_set_indices
            empty(integer),  # adaptive_rkv_diversity_block_set_indices_begins
            empty(integer),  # token_type_ids
            empty(np.uint8),  # qq_bias
            empty(integer),  # qq_bias_begins
        ]
        node = ov_op._PagedAttentionExtension([_output(argument) for argument in arguments])
        info = node.get_rt_info()
        for kind in ("k", "v"):
            info[f"num_{kind}_heads"] = config.num_key_value_heads
            info[f"{kind}_head_size"] = config.head_size
        return node.output(0)


def _output(node: Any) -> Any:
    return node if isinstance(node, ov.Output) else node.output(0)
