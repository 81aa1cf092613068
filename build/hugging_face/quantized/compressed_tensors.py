"""Read compressed-tensors, the form of LLM Compressor: integers, packed or not, and FP8.

Source: compressed-tensors 0.20.0, ``compressors/pack_quantized``, ``compressors/naive_quantized``,
``quantization/quant_config.py``, ``quantization/quant_args.py`` and ``utils/match.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import Tensor
from build.hugging_face.quantized.form import Blocks, Form, read_blocks, read_groups, signed, unpack, unsigned
from build.hugging_face.quantized.fp8 import input_scale
from build.hugging_face.weights import Weights
from build.networks.linear import Linear

_INT_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_FLOAT_FORMATS = ("float-quantized", "naive-quantized")
# How the scales were found, or what a writer adds for information.
_ARGUMENTS_ALONE = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
_ALONE = ("quant_method", "ignore", "global_compression_ratio", "version")
_PATTERN = "re:"


@dataclass(frozen=True)
class Scheme:
    """One group of ``config_groups``.

    Attributes:
        targets: Names, ``re:`` and a pattern of names, or ``Linear``.
        bits: 4 or 8 bits of an integer; None for FP8.
        is_packed: Whether integers are packed in words.
        is_symmetric: Whether zero points are 0.
        blocks: Weights that share a scale.
        activations: ``none``; ``dynamic``: rounded with a scale that is found anew; ``static``: with one of
            the checkpoint.
    """

    targets: tuple[str, ...]
    bits: int | None
    is_packed: bool
    is_symmetric: bool
    blocks: Blocks
    activations: str

    def matches(self, weights: Weights, name: str, *, by_class: bool) -> bool:
        """Return whether a target is this projection's name, or the class of all projections."""
        if by_class:
            return "Linear" in self.targets
        return any(
            _begins(weights, name, target.removeprefix(_PATTERN))
            if target.startswith(_PATTERN)
            else target == name
            for target in self.targets
        )

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """See ``form.Read``."""
        scale = self.blocks.take(weights, f"{name}.weight_scale", outputs, inputs)
        rounding = None
        if self.activations == "static":
            dtype = "F8_E4M3" if self.bits is None else "I8"
            rounding = input_scale(weights, f"{name}.input_scale", dtype)
        if self.bits is None:
            weight = weights.take(f"{name}.weight", (outputs, inputs), dtypes=("F8_E4M3",))
            linear: Callable[[], Linear] = partial(Linear, weight)
        else:
            linear = self._integers(weights, name, outputs, inputs, self.bits)

        return lambda: replace(
            linear(),
            scale=self.blocks.spread(scale.to_float32(), outputs, inputs),
            input_quantization=rounding,
        )

    def _integers(
        self, weights: Weights, name: str, outputs: int, inputs: int, bits: int
    ) -> Callable[[], Linear]:
        """Return the function that reads weight and zero point."""
        per_word = 32 // bits
        if self.is_packed:
            stored = weights.take(f"{name}.weight_packed", (outputs, -(-inputs // per_word)), dtypes=("I32",))
            shape = weights.take(f"{name}.weight_shape", (2,), dtypes=("I32", "I64")).data.tolist()
            if shape != [outputs, inputs]:
                raise weights.fail(f"{name}.weight_shape is {shape}, not {[outputs, inputs]}")
        else:
            stored = weights.take(f"{name}.weight", (outputs, inputs), dtypes=("I8",))
        zeros = None if self.is_symmetric else self._zero_point(weights, name, outputs, inputs, per_word)

        def linear() -> Linear:
            if self.is_packed:
                found = np.ascontiguousarray(unpack(stored.data, bits)[:, :inputs])
            else:
                found = unsigned(stored.data, bits)
            if zeros is None:
                found = signed(found, bits)
                return Linear(Tensor("I8", found.shape, found), bits=bits)
            zero_point = zeros.data
            if zeros.dtype == "I32":
                zero_point = unpack(zero_point.T, bits)[:, :outputs].T
            else:
                zero_point = unsigned(zero_point, bits)
            zero_point = np.ascontiguousarray(self.blocks.spread(zero_point, outputs, inputs))
            return Linear(Tensor("U8", found.shape, found), zero_point=zero_point, bits=bits)

        return linear

    def _zero_point(self, weights: Weights, name: str, outputs: int, inputs: int, per_word: int) -> Tensor:
        name = f"{name}.weight_zero_point"
        if self.is_packed and self.blocks.rows == 1:
            shape = (-(-outputs // per_word), self.blocks.num_groups(inputs))
            return weights.take(name, shape, dtypes=("I32",))
        return self.blocks.take(weights, name, outputs, inputs, ("I8",))


def _begins(weights: Weights, name: str, pattern: str) -> bool:
    """Return whether a name begins with what a pattern matches, as ``re.match`` does.

    Python's engine may take for ever. That of tokenizers, Oniguruma, gives up after ten million steps.

    Raises:
        CheckpointError: It has given up.
    """
    try:
        return not Split(Regex(rf"\A(?={pattern}).+"), "removed").pre_tokenize_str(name)
    except BaseException as error:  # a panic
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise weights.fail(f"a target re:{pattern:.80} takes too long for {name}: {error!s:.200}") from None


def _read(
    schemes: Sequence[Scheme], weights: Weights, name: str, outputs: int, inputs: int
) -> Callable[[], Linear]:
    """See ``form.Read``. Names come before classes, as in ``match_targets``."""
    for by_class in (False, True):
        for scheme in schemes:
            if scheme.matches(weights, name, by_class=by_class):
                return scheme.read(weights, name, outputs, inputs)
    raise weights.fail(f"{name} is quantized, and no target of config_groups names it")


def _refuse_others(settings: Settings, *known: str) -> None:
    for key in settings.names:
        if key not in known and settings.get(key) not in (None, False, {}, []):
            raise settings.fail(f"{key}={settings.get(key)!r:.200}; known: {', '.join(known)}")


def _blocks(weights: Settings) -> Blocks:
    """Parse ``strategy``, which follows from ``group_size`` if it is absent."""
    size = weights.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    weights.refuse_unless("strategy", "tensor", "channel", "group", "block")
    strategy = weights.get("strategy", default)
    if strategy == "tensor":
        return Blocks()
    if strategy == "channel":
        return Blocks(rows=1)
    return (
        read_blocks(weights, "block_structure") if strategy == "block" else read_groups(weights, "group_size")
    )


def _activations(group: Settings, kind: str) -> str:
    inputs = group.part("input_activations")
    if inputs is None:
        return "none"
    _refuse_others(
        inputs,
        *("num_bits", "type", "symmetric", "strategy", "dynamic", "group_size", "actorder"),
        *_ARGUMENTS_ALONE,
    )
    inputs.refuse_unless("num_bits", 8)
    inputs.refuse_unless("type", kind)
    inputs.refuse_unless("dynamic", True, False)
    if inputs.flag("dynamic"):
        return "dynamic"
    inputs.refuse_unless("strategy", "tensor")
    inputs.refuse_unless("symmetric", True)
    return "static"


def _scheme(group: Settings, layout: str | None) -> Scheme:
    _refuse_others(group, "targets", "weights", "input_activations", "format")
    targets = group.items("targets", str)
    for target in targets:
        try:
            Regex(target.removeprefix(_PATTERN) if target.startswith(_PATTERN) else "")
        except Exception as error:  # the package raises nothing more specific
            raise group.fail(f"targets={target!r:.80} is not a valid pattern: {error}") from None
    weights = group.part("weights")
    if weights is None:
        raise group.fail("weights=None, so nothing is quantized")
    _refuse_others(
        weights,
        *("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder"),
        *_ARGUMENTS_ALONE,
    )
    weights.refuse_unless("type", "int", "float")
    weights.refuse_unless("actorder", "weight", "static", False)
    kind = weights.get("type", "int")
    weights.refuse_unless("num_bits", *((4, 8) if kind == "int" else (8,)))
    is_symmetric = weights.flag("symmetric", default=True)
    layout = group.get("format", layout)
    if layout not in (_INT_FORMATS if kind == "int" else _FLOAT_FORMATS):
        limit = ", ".join(_INT_FORMATS if kind == "int" else _FLOAT_FORMATS)
        raise group.fail(f"format={layout!r} for weights of type {kind}; supported: {limit}")
    return Scheme(
        targets=tuple(targets),
        bits=weights.integer("num_bits", 8) if kind == "int" else None,
        is_packed=layout == "pack-quantized",
        is_symmetric=is_symmetric,
        blocks=_blocks(weights),
        activations=_activations(group, kind),
    )


def read_compressed_tensors(settings: Settings) -> Form:
    """Parse ``quantization_config``.

    Raises:
        CheckpointError: A value has no meaning that is implemented.
    """
    _refuse_others(settings, "config_groups", "format", "quantization_status", "sparsity_config", *_ALONE)
    settings.refuse_unless("quantization_status", "compressed")
    sparsity = settings.part("sparsity_config")
    if sparsity is not None:
        sparsity.refuse_unless("format", "dense")
    groups = settings.part("config_groups")
    if groups is None:
        raise settings.fail("config_groups=None, so nothing is quantized")
    schemes = []
    for key in groups.names:
        group = groups.part(key)
        if group is None:
            raise groups.fail(f"{key}={groups.get(key)!r:.80} must be an object with targets and weights")
        schemes.append(_scheme(group, settings.get("format")))
    bits = [scheme.bits for scheme in schemes]
    return Form(
        "compressed-tensors",
        partial(_read, schemes),
        None if None in bits else max(each for each in bits if each is not None),
        min((scheme.blocks.columns for scheme in schemes if scheme.blocks.columns), default=1),
        all(scheme.bits == 8 and scheme.activations == "dynamic" for scheme in schemes),
    )
