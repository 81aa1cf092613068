"""Write gated delta networks as an operation of our own (``build/operators/recurrence``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from build.networks.network import NetworkConfig
from build.networks.recurrent import CONVOLUTION_TAPS, RecurrentSizes, RecurrentWeights
from build.openvino.operations import floats, parameter
from build.openvino.own_operators import own_operation
from pipelines.errors import EngineBuildError

_KEY_STEP = 16  # features: the kernel's registers
_VALUE_STEP = 32  # features that the kernel computes together
_PROGRESS = 16  # floats of a state before its numbers
_INPUTS = ("past_lens", "subsequence_begins", "slots")


class OwnRecurrence:
    """Gated delta networks of our own over slots, which keep a state and a log of each request.

    Args:
        sizes: Sizes of all recurrent layers.
        norm_epsilon: Epsilon of the norm of their outputs.

    Raises:
        EngineBuildError: The kernel does not know these sizes.
    """

    def __init__(self, sizes: RecurrentSizes, norm_epsilon: float) -> None:
        heads = sizes.num_value_heads % sizes.num_key_heads
        if heads or sizes.key_size % _KEY_STEP or sizes.value_size % _VALUE_STEP:
            raise EngineBuildError(
                f"the recurrence operator cannot compute {sizes.num_key_heads} heads of {sizes.key_size} for "
                f"keys, {sizes.num_value_heads} of {sizes.value_size} for values: it needs keys of a "
                f"multiple of {_KEY_STEP}, values of a multiple of {_VALUE_STEP}, as many heads of values "
                "for each",
                "use another model: no other operator computes recurrent layers here",
            )
        self._sizes = sizes
        self._epsilon = norm_epsilon

    @property
    def state_bytes(self) -> int:
        """Bytes of a slot in the states of a layer."""
        sizes = self._sizes
        history = (CONVOLUTION_TAPS - 1) * sizes.channels
        return 4 * (_PROGRESS + history + sizes.value_channels * sizes.key_size)

    @property
    def log_bytes(self) -> int:
        """Bytes of a row in the log of a layer."""
        sizes = self._sizes
        keys = sizes.num_key_heads * sizes.key_size
        return 4 * (sizes.channels + keys + sizes.num_value_heads + sizes.value_channels)

    def tables(self, index: int) -> dict[str, Any]:
        """Return the inputs of a layer for what the slots keep, which a step changes.

        ``state.N`` u8 [slots, state_bytes]; ``state_log.N`` u8 [slots, rows, log_bytes] for as many rows as a
        request can have in a step, at least one. Whatever they hold at first does not matter.
        """
        names_and_shapes = {
            f"state.{index}": [-1, self.state_bytes],
            f"state_log.{index}": [-1, -1, self.log_bytes],
        }
        return {name: parameter(name, shape, ov.Type.u8) for name, shape in names_and_shapes.items()}

    def recur(
        self, projected: Any, weights: RecurrentWeights, tables: list[Any], inputs: dict[str, Any]
    ) -> Any:
        """Continue the states of a layer.

        A sequence of several tokens is known, and kept at once. Sequences of one token with the same slot
        that follow each other are rows that may be rejected: the state does not change, and they are logged.
        The next step of this slot first adds as many of them as were accepted: those that its ``past_lens``
        counts. A request with no tokens before it begins from zeros.

        Args:
            projected: [T, 1, width]: queries, keys, values, output gates, b and a.
            weights: Those of the layer.
            tables: See ``tables``.
            inputs: See ``paged_attention.network_inputs``, and ``slots`` i32 [S], the slot of each sequence;
                a negative one for padding, whose outputs are 0.

        Returns:
            [T, 1, value_channels].
        """
        sizes = self._sizes
        gates = np.stack([weights.rates, weights.biases])
        arguments = [projected, floats(weights.convolution), floats(gates), floats(weights.norm)]
        attributes = {
            "num_key_heads": sizes.num_key_heads,
            "num_value_heads": sizes.num_value_heads,
            "key_size": sizes.key_size,
            "value_size": sizes.value_size,
            "norm_epsilon": self._epsilon,
        }
        return own_operation(
            "Recurrence", [*arguments, *tables, *(inputs[name] for name in _INPUTS)], attributes
        )


def recurrence_entries(config: NetworkConfig) -> dict[str, int]:
    """Return what ``engine.json`` says of all layers: bytes of a state, and of a row in its log."""
    if config.recurrence is None:
        return {}
    layer, count = OwnRecurrence(config.recurrence, config.norm_epsilon), config.num_recurrent_layers
    return {"state_bytes": count * layer.state_bytes, "log_bytes": count * layer.log_bytes}
