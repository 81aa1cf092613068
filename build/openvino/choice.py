"""Chooses what multiplies the integer weights of an engine: OpenVINO or an operator of our own."""

from __future__ import annotations

from build.networks.config import NetworkConfig
from build.recipe import EngineRecipe
from pipelines.available_resources import processor_flags

_WIDER = frozenset({"avx512f", "avx_vnni"})
"""Extensions of AVX2 for which OpenVINO has products of its own, as far as was measured."""


_ROUNDS_INPUTS = "W8A8_SQ"
"""Beginning of the names of forms whose inputs are rounded to 8 bits by a scale of the checkpoint."""


def gains_from_own_products(engine: EngineRecipe, config: NetworkConfig) -> bool:
    """Return whether ``linear: auto`` stands for products of our own on this machine.

    Args:
        engine: Section of the recipe.
        config: Network of the checkpoint. Other integers of a checkpoint may have zero points, so they stay
            with OpenVINO.
    """
    is_made_here = engine.quantization in ("int8", "int4") and config.quant_algo is None
    return _has_avx2_alone() and (is_made_here or needs_own_products(engine, config))


def needs_own_products(engine: EngineRecipe, config: NetworkConfig) -> bool:
    """Return whether OpenVINO's products would be wrong on this machine.

    With AVX2 alone it adds two products of rounded inputs in 16 bits, where they are cut off: a projection of
    random numbers was wrong by up to 17 % of its largest output.
    """
    rounds = engine.quantization == "checkpoint" and (config.quant_algo or "").startswith(_ROUNDS_INPUTS)
    return rounds and _has_avx2_alone()


def _has_avx2_alone() -> bool:
    flags = processor_flags()
    return "avx2" in flags and not _WIDER & flags
