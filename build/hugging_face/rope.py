"""Parse the rotary settings of ``config.json``, as ``transformers/modeling_rope_utils.py`` reads them.

Tables of angles are fixed when an engine is built, so that the bits of a position depend on nothing else that
is computed (docs/decisions/models.md). Two kinds of scaling change in transformers while a text grows:
``dynamic`` (NTK) beyond ``max_position_embeddings``, which is where contexts end here, and ``longrope``,
whose factors are chosen here by the longest text that a server accepts.
"""

from __future__ import annotations

import math

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
    share = rope.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0))
    size = int(head_size * min(share, 2.0))
    if share > 1 or size < 2 or size % 2:
        raise settings.fail(f"partial_rotary_factor={share:g} makes no pairs of {head_size} coordinates")
    try:
        rotary = Rotary(rope.number("rope_theta"), size, _scaling(settings, rope, max_seq_len))
        _check(rotary)
    except (ValueError, ArithmeticError) as error:
        raise settings.fail(f"no angles for rope settings {dict(rope.values)!r:.200}: {error!r}") from None
    return rotary


def _check(rotary: Rotary) -> None:
    """Raise ValueError for settings of which no angles can be computed."""
    scaling = rotary.scaling
    if scaling and scaling.kind == "longrope" and len(scaling.divisors) != rotary.size // 2:
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
        stretched = {"max_position_embeddings": max(written, int(original * scaling.factor))}
        return Settings(stretched, settings.path).integer("max_position_embeddings")
    return written


def _rope(settings: Settings, kind: str) -> Settings:
    """Return the rotary settings of a kind of layer, under the keys of transformers 5.

    transformers 4 has ``rope_theta``, ``rope_scaling``, ``partial_rotary_factor`` and, for the layers of
    Gemma 3 with a window, ``rope_local_base_freq``.
    """
    found, scaling = settings.part("rope_parameters"), settings.part("rope_scaling")
    if found is not None and scaling is None:
        of_kind = found.part(kind) or found
        values = {"rope_theta": settings.get("rope_theta"), **of_kind.values}
        return Settings(values, settings.path, "rope_parameters")
    is_local = kind == "sliding_attention"
    values = {} if is_local or scaling is None else dict(scaling.values)
    values["rope_theta"] = settings.get("rope_local_base_freq" if is_local else "rope_theta")
    return Settings(values, settings.path, None if scaling is None else "rope_scaling")


def _scaling(settings: Settings, rope: Settings, max_seq_len: int) -> RotaryScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", "dynamic"):
        return None
    if kind == "linear":
        return RotaryScaling("linear", rope.number("factor"))
    original = _original_length(settings, rope)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.fail(f"high_freq_factor={high:g} must be above low_freq_factor={low:g}")
        return RotaryScaling("llama3", rope.number("factor"), low, high, original)
    factor = rope.number("factor", settings.integer("max_position_embeddings") / original)
    magnitude = None if rope.get("attention_factor") is None else rope.number("attention_factor")
    if kind in ("longrope", "su") or "short_factor" in rope.names:  # Phi-3 has called it su and yarn
        divisors = rope.items("long_factor" if max_seq_len > original else "short_factor", int, float)
        if magnitude is None:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return RotaryScaling(
            "longrope",
            factor,
            original_max_position_embeddings=original,
            divisors=tuple(map(float, divisors)),
            magnitude=magnitude,
        )
    if kind == "yarn":
        return RotaryScaling(
            "yarn",
            factor,
            rope.number("beta_slow", 1),
            rope.number("beta_fast", 32),
            original,
            magnitude=_yarn_magnitude(rope, factor) if magnitude is None else magnitude,
            truncate=rope.flag("truncate", default=True),
        )
    raise settings.fail(
        f"rope_type={kind!r:.80}; supported: default, linear, dynamic, llama3, longrope, yarn"
    )


def _original_length(settings: Settings, rope: Settings) -> int:
    """Return the context of the training; the class of Phi-3 reads it beside the rotary settings."""
    if settings.get("model_type") == "phi3":
        return settings.integer("original_max_position_embeddings")
    key = "original_max_position_embeddings"
    return rope.integer(key, settings.integer("max_position_embeddings"))


def _yarn_magnitude(rope: Settings, factor: float) -> float:
    """Return the factor of sine and cosine, by ``mscale`` and ``mscale_all_dim`` where both are given."""

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    return magnitude(1.0)
