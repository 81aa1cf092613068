"""Parse the rotary settings of ``config.json``, as ``transformers/modeling_rope_utils.py`` reads them.

Tables of angles are fixed when an engine is built, so that the bits of a position depend on nothing else that
is computed (docs/decisions/models.md). Two kinds of scaling change in transformers while a text grows:
``dynamic`` (NTK) beyond ``max_position_embeddings``, which is where contexts end here, and ``longrope``,
whose factors are chosen here by the longest text that a server accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from build.checkpoints.settings import Settings
from build.networks.network import Rotary, RotaryScaling
from build.networks.rotary import rotary_frequencies


def rotary_of(settings: Settings, kind: str, head_size: int, max_seq_len: int) -> Rotary:
    """Return the position embedding of a kind of layer.

    Args:
        settings: The checkpoint's settings.
        kind: ``full_attention`` or ``sliding_attention``.
        head_size: Coordinates of a head.
        max_seq_len: Longest text that will be computed, tokens.

    Raises:
        CheckpointError: A setting is missing or invalid, or the scaling is not implemented.
    """
    rope = _rope(settings, kind)
    share = rope.get("partial_rotary_factor") or settings.get("partial_rotary_factor", 1.0)
    try:
        rotary = Rotary(
            float(rope["rope_theta"]), int(head_size * float(share)), _scaling(settings, rope, max_seq_len)
        )
        _check(rotary)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise settings.fail(
            f"rope settings {dict(rope)!r:.200}: {error!r}", "numbers, under the keys of transformers"
        ) from None
    return rotary


def _check(rotary: Rotary) -> None:
    """Raise ValueError for settings of which no angles can be computed."""
    scaling = rotary.scaling
    if scaling is not None and scaling.divisors and len(scaling.divisors) != rotary.size // 2:
        raise ValueError(f"{len(scaling.divisors)} factors for {rotary.size // 2} frequencies")
    with np.errstate(all="ignore"):
        numbers = rotary_frequencies(rotary)
    if scaling is not None:
        numbers = np.append(numbers, [scaling.factor, scaling.magnitude])
    if not np.isfinite(numbers).all():
        raise ValueError("the angles are not finite")


def max_positions(settings: Settings, rotary: Rotary, max_seq_len: int) -> int:
    """Return the longest context of a network, tokens.

    Args:
        settings: The checkpoint's settings.
        rotary: Position embedding of its layers without a window.
        max_seq_len: As for ``rotary_of``.
    """
    written, scaling = settings.integer("max_position_embeddings"), rotary.scaling
    if scaling is None:
        return written
    original = scaling.original_max_position_embeddings
    if scaling.kind == "longrope" and max_seq_len <= original:
        return min(written, original)
    if scaling.kind == "yarn":  # Qwen's instructions leave the original length in max_position_embeddings
        return max(written, int(original * scaling.factor))
    return written


def _rope(settings: Settings, kind: str) -> Mapping[str, Any]:
    """Return the rotary settings of a kind of layer, under the keys of transformers 5.

    transformers 4 has ``rope_theta``, ``rope_scaling``, ``partial_rotary_factor`` and, for the layers of
    Gemma 3 with a window, ``rope_local_base_freq``.
    """
    found, scaling = settings.get("rope_parameters"), settings.get("rope_scaling")
    for key, value in (("rope_parameters", found), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, dict):
            raise settings.fail(f"{key}={value!r:.80}", f"{key} must be an object")
    if found is not None and scaling is None:
        of_kind = found.get(kind, found)
        return {"rope_theta": settings.get("rope_theta"), **(of_kind or {})}
    is_local = kind == "sliding_attention"
    return {
        **({} if is_local else scaling or {}),
        "rope_theta": settings.get("rope_local_base_freq" if is_local else "rope_theta"),
    }


def _scaling(settings: Settings, rope: Mapping[str, Any], max_seq_len: int) -> RotaryScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", "dynamic"):
        return None
    if kind == "linear":
        return RotaryScaling("linear", float(rope["factor"]))
    original = _original_length(settings, rope)
    if kind == "llama3":
        return RotaryScaling(
            "llama3",
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            original,
        )
    factor = float(rope.get("factor") or settings.integer("max_position_embeddings") / original)
    magnitude = rope.get("attention_factor")
    if kind in ("longrope", "su") or "short_factor" in rope:  # Phi-3 has called it su and yarn
        divisors = rope["long_factor" if max_seq_len > original else "short_factor"]
        if magnitude is None:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return RotaryScaling(
            "longrope",
            factor,
            original_max_position_embeddings=original,
            divisors=tuple(float(each) for each in divisors),
            magnitude=float(magnitude),
        )
    if kind == "yarn":
        return RotaryScaling(
            "yarn",
            factor,
            float(rope.get("beta_slow") or 1),
            float(rope.get("beta_fast") or 32),
            original,
            magnitude=_yarn_magnitude(rope, factor) if magnitude is None else float(magnitude),
            truncate=bool(rope.get("truncate", True)),
        )
    raise settings.fail(f"rope_type={kind!r}", "supported: default, linear, dynamic, llama3, longrope, yarn")


def _original_length(settings: Settings, rope: Mapping[str, Any]) -> int:
    """Return the context of the training; the class of Phi-3 reads it beside the rotary settings."""
    if settings.get("model_type") == "phi3":
        return settings.integer("original_max_position_embeddings")
    written = rope.get("original_max_position_embeddings")
    return settings.integer("max_position_embeddings") if written is None else int(written)


def _yarn_magnitude(rope: Mapping[str, Any], factor: float) -> float:
    """Return the factor of sine and cosine, by ``mscale`` and ``mscale_all_dim`` where both are given."""

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale, scale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and scale_all:
        return magnitude(float(scale)) / magnitude(float(scale_all))
    return magnitude(1.0)
