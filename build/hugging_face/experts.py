"""Read the experts of a layer: their projections, stacked along the outputs of all, and the router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from build.hugging_face.families import ExpertNames
from build.hugging_face.weights import Weights
from build.networks.experts import ExpertSizes
from build.networks.linear import Linear, stack

_Read = Callable[[], Linear]


class ExpertReader:
    """Reads experts of one family.

    Args:
        weights: Tensors of the checkpoint.
        names: Names of the family.
        sizes: Sizes of the experts.
        hidden: Features that they read and write.
        linear: Checks the tensors of a projection by name, outputs and inputs; returns what reads them.
    """

    def __init__(
        self,
        weights: Weights,
        names: ExpertNames,
        sizes: ExpertSizes,
        hidden: int,
        linear: Callable[[str, int, int], _Read],
    ) -> None:
        self._weights, self._names, self._sizes = weights, names, sizes
        self._hidden, self._linear = hidden, linear

    def read(self, layer: str) -> Callable[[], dict[str, Any]]:
        """Check the tensors of a layer's experts, and return the function that reads them.

        Args:
            layer: What the names of the layer's tensors begin with.

        Returns:
            Attributes of ``network.Layer``.

        Raises:
            CheckpointError: A tensor is missing or does not fit the settings; from that function, experts are
                stored in several forms.
        """
        block, sizes = f"{layer}{self._names.block}.", self._sizes
        router = self._weights.take(f"{block}gate.weight", (sizes.count, self._hidden))
        projections = {
            attribute: self._each(f"{block}experts.", attribute, name)
            for attribute, name in self._names.projections.items()
        }
        return lambda: {
            "router": Linear(router),
            **{
                attribute: self._stacked(block, [read() for read in reads])
                for attribute, reads in projections.items()
            },
        }

    def _each(self, experts: str, attribute: str, name: str) -> list[_Read]:
        inner = self._sizes.intermediate_size
        shape = (self._hidden, inner) if attribute == "proj" else (inner, self._hidden)
        return [self._linear(f"{experts}{index}.{name}", *shape) for index in range(self._sizes.count)]

    def _stacked(self, block: str, experts: list[Linear]) -> Linear:
        stacked = stack(experts)
        if len(stacked) > 1:
            raise self._weights.fail(
                f"{block}experts have {len(stacked)} forms", "one form for all of a layer"
            )
        return stacked[0]
