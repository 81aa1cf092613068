"""Chooses what multiplies the integer weights of an engine: OpenVINO or an operator of our own."""

from __future__ import annotations

from build.networks.config import NetworkConfig
from build.recipe import EngineRecipe
from pipelines.available_resources import has_avx2_alone


def gains_from_own_products(engine: EngineRecipe, config: NetworkConfig) -> bool:
    """Return whether ``linear: auto`` stands for products of our own on this machine.

    Args:
        engine: Section of the recipe.
        config: Network of the checkpoint. Integers of a checkpoint may have zero points, so they stay with
            OpenVINO.
    """
    return has_avx2_alone() and engine.quantization in ("int8", "int4") and config.quant_algo is None
