"""Chooses what multiplies the integer weights of an engine: OpenVINO or an operator of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from build.operators.library import COMPILER, has_compiler
from build.recipe import Recipe
from pipelines.available_resources import processor_flags

_BYTE_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni"})
"""Instructions for products of 8-bit integers, with which OpenVINO is fast."""


def with_chosen_products(recipe: Recipe, report: Callable[[str], None]) -> Recipe:
    """Replace ``linear: auto`` of both engines by what is faster on this machine, and can be built here.

    Args:
        recipe: The pair.
        report: Called with one line if a compiler is missing.
    """
    engines = {role: getattr(recipe, role) for role in ("draft", "target")}
    is_slow = not _BYTE_PRODUCTS & processor_flags()
    undecided = {role: engine for role, engine in engines.items() if engine.linear == "auto"}
    gaining = {
        role for role, engine in undecided.items() if is_slow and engine.quantization in ("int8", "int4")
    }
    if gaining and not has_compiler():
        gaining = set()
        report(
            "warning: this processor has no VNNI, and OpenVINO takes up to three times as long for integer "
            f"weights as products of our own, which need a compiler (Debian: apt install {COMPILER})"
        )
    chosen = {
        role: dataclasses.replace(engine, linear="draftproof" if role in gaining else "openvino")
        for role, engine in undecided.items()
    }
    return dataclasses.replace(recipe, **chosen)
