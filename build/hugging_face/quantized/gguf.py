"""Read the blocks of GGUF, under the names of ``build/gguf``: each projection has a type of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from build.checkpoints.settings import Settings
from build.gguf.blocks import linear_of
from build.gguf.file import STORED_TYPES
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.linear import Linear


def _read(weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
    """See ``form.Read``. The values are those of llama.cpp, which nothing rounds."""
    found = [kind for kind in STORED_TYPES if f"{name}.{kind.lower()}" in weights]
    if not found or inputs % STORED_TYPES[found[0]].block:
        raise weights.fail(f"{name}: {', '.join(found) or 'no blocks'} for rows of {inputs} weights")
    stored = STORED_TYPES[found[0]]
    shape = (outputs, inputs // stored.block * stored.num_bytes)
    blocks = weights.take(f"{name}.{stored.name.lower()}", shape, dtypes=("U8",))

    def linear() -> Linear:
        made = linear_of(stored.name, blocks.data)
        if not all(np.isfinite(values).all() for values in (made.scale, made.offset) if values is not None):
            raise weights.fail(f"{name} has scales that are no finite numbers")
        return made

    return linear


def read_gguf(settings: Settings) -> Form:
    """Return the form with the settings that ``build/gguf`` wrote."""
    return Form("gguf", _read, settings.number("bits"))
