"""Write mixtures of experts with products of our own, in which rows of one expert share a read."""

from __future__ import annotations

from typing import Any

from openvino import opset15 as ops

from build.networks.experts import ExpertSizes
from build.networks.linear import Linear
from build.openvino.operations import floats, integers, linear, openvino_product
from build.openvino.own_operators import PANEL, integer_weight, own_operation
from pipelines.errors import EngineBuildError

_FLOAT_BITS = 32


class ChosenExperts:
    """The experts that a layer's router chooses for each token.

    Args:
        x: [T, 1, hidden], what the router reads.
        router: Its projection, floats.
        sizes: Sizes of the experts.

    Attributes:
        share_of_shared: [T, 1, 1], of the expert that computes all tokens; None without one.
    """

    def __init__(self, x: Any, router: Linear, sizes: ExpertSizes) -> None:
        self._count = sizes.count
        scores, self.share_of_shared = linear(x, router, openvino_product), None
        if (
            sizes.shared_size
        ):  # its score has no product of its own, which would be too narrow for the row rule
            scores, of_shared = ops.variadic_split(scores, integers(2), integers([sizes.count, 1])).outputs()
            self.share_of_shared = ops.sigmoid(of_shared)
        most = ops.topk(ops.softmax(scores, 2), integers(sizes.num_chosen), 2, "max", "value", "i32")
        shares, experts = most.outputs()
        if sizes.normalizes:
            shares = ops.divide(shares, ops.reduce_sum(shares, integers([2]), keep_dims=True))
        self._experts = ops.squeeze(experts, integers([1]))  # [T, chosen]
        self._shares = ops.reshape(shares, integers([0, sizes.num_chosen, 1]), True)

    def linear(self, x: Any, weights: Linear) -> Any:
        """Apply a projection of the chosen experts.

        Args:
            x: [T, 1, in], what all chosen experts read, or [T, chosen, in].
            weights: The projections of all experts, stacked along the outputs.

        Returns:
            [T, chosen, out].

        Raises:
            EngineBuildError: These weights are not multiplied by our operation.
        """
        num_outputs = weights.weight.shape[0] // self._count
        self._check(weights, num_outputs)
        if weights.is_integer:
            constants, attributes = integer_weight(weights)
        else:
            constants, attributes = [floats(weights.to_float32())], {"num_bits": _FLOAT_BITS}
        attributes |= {"num_outputs": num_outputs, "num_experts": self._count}
        y = own_operation("ExpertLinear", [x, self._experts, *constants], attributes)
        if weights.bias is None:
            return y
        biases = floats(weights.bias.reshape(self._count, num_outputs))
        return ops.add(y, ops.gather(biases, self._experts, integers(0)))

    def _check(self, weights: Linear, num_outputs: int) -> None:
        problems = {
            f"{num_outputs} outputs of an expert": num_outputs % PANEL > 0,
            "inputs that are rounded": weights.input_quantization is not None,
            "inputs in another order": weights.input_order is not None,
            "inputs that are scaled": weights.prequant is not None,
        }
        found = [problem for problem, is_found in problems.items() if is_found]
        if found:
            raise EngineBuildError(
                f"products of our own cannot multiply the experts of this checkpoint: {', '.join(found)}; "
                f"they need a multiple of {PANEL} outputs, and inputs as they come",
                "use another checkpoint of this model, in floating point for instance",
            )

    def mixed(self, x: Any) -> Any:
        """Return the sum of the chosen experts' outputs [T, chosen, n] by their shares, [T, 1, n]."""
        return ops.reduce_sum(ops.multiply(x, self._shares), integers([1]), keep_dims=True)
