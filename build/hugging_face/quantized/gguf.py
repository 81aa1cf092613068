"""Read the blocks of GGUF, as ``build/gguf`` unpacks them: each projection has a type of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import Tensor
from build.gguf.blocks import dequantized
from build.gguf.file import STORED_TYPES
from build.hugging_face.weights import Weights
from build.networks.linear import Linear


@dataclass(frozen=True)
class Gguf:
    """Projections whose weights are numbers once their blocks are read."""

    name = "gguf"
    bits = None
    group_size = 1
    rounds_activations = False

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """See ``Form``. The values are those of llama.cpp, float32."""
        found = [kind for kind in STORED_TYPES if f"{name}.{kind.lower()}" in weights]
        if not found or inputs % STORED_TYPES[found[0]].block:
            raise weights.fail(f"{name}: {', '.join(found) or 'no blocks'}", f"rows of {inputs} weights")
        stored = STORED_TYPES[found[0]]
        shape = (outputs, inputs // stored.block * stored.num_bytes)
        blocks = weights.take(f"{name}.{stored.name.lower()}", shape, dtypes=("U8",))

        def linear() -> Linear:
            values = dequantized(stored.name, blocks.data)
            return Linear(Tensor("F32", values.shape, values))

        return linear


def read_gguf(settings: Settings) -> Gguf:
    """Return the form, which has no settings."""
    return Gguf()
