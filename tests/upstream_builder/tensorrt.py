"""Stand in for the package ``tensorrt``: a network is computed with torch while it is defined.

So shapes need no rules of their own: inputs have the sizes of an example, and every layer has values. Floats
of all types are computed in float32; a tensor's ``dtype`` is what TensorRT would have, and layers check it as
a strongly typed network does. Weights may be filled in after the definition, so ``build_serialized_network``
computes all layers anew. Only what the builder uses of decoders is here; anything else is an AttributeError.
Names are TensorRT's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from tests.upstream_builder import plugins

__version__ = "10.14.1"

EXAMPLE: dict[str, torch.Tensor] = {}
"""Values of inputs by name; others are zeros, with 1 for a size that is open."""

NETWORKS: list[INetworkDefinition] = []
"""Every network that was built, computed."""


class DataType(IntEnum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4, FP4 = range(11)


float32, float16, int8, int32, bool, uint8, fp8, bfloat16, int64, int4, fp4 = DataType
_STORED = {
    float32: torch.float32,
    float16: torch.float16,
    bfloat16: torch.bfloat16,
    fp8: torch.float8_e4m3fn,
    int8: torch.int8,
    int32: torch.int32,
    int64: torch.int64,
    bool: torch.bool,
}
FLOATS = (float32, float16, bfloat16, fp8)


class Word(str):
    """A member of an enumeration; its number is of no interest, except as a bit of a flag."""

    name = property(str.__str__)

    def __int__(self) -> int:
        return int(self == "STRONGLY_TYPED")


class _Words(type):
    __members__: Mapping[str, Word] = {}

    def __getattr__(cls, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(name)


class LayerType(metaclass=_Words):
    """All enumerations but that of types: any word is a member."""


ElementWiseOperation = UnaryOperation = ReduceOperation = ActivationType = MatrixOperation = LayerType
SampleMode = GatherMode = ScatterMode = FillOperation = TopKOperation = PluginFieldType = LayerType
TensorLocation = TensorRTPhase = NetworkDefinitionCreationFlag = ProfilingVerbosity = LayerType
BuilderFlag = ResizeCoordinateTransformation = InterpolationMode = LoopOutput = TripLimit = LayerType
PoolingType = LayerType


class Dims(tuple[int, ...]):
    """A shape."""


class Weights:
    """A view of an array by its address; the builder fills it in later."""

    def __init__(self, dtype: DataType, address: int, count: int) -> None:
        self.dtype, self._address, self._count, self.name = dtype, address, count, ""

    def values(self, shape: Sequence[int]) -> torch.Tensor:
        stored = _STORED[self.dtype]
        size = self._count * stored.itemsize
        raw = (
            bytearray((ctypes.c_char * size).from_address(self._address))
            if size
            else bytearray(stored.itemsize)
        )
        values = torch.frombuffer(raw, dtype=stored)[: self._count]
        return as_computed(values.reshape(tuple(shape)), self.dtype)


def as_computed(values: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Return values in the type in which they are computed."""
    return values.float() if dtype in FLOATS else values.to(_STORED[dtype])


class ITensor:
    """A tensor of the network; ``layer`` is None for inputs."""

    def __init__(self, name: str, dtype: DataType, layer: ILayer | None, value: Any = None) -> None:
        self.name, self.dtype, self.layer, self.held = name, dtype, layer, value
        self.location = TensorLocation.DEVICE
        self.is_shape_tensor = False

    @property
    def value(self) -> torch.Tensor:
        if self.held is None:
            assert self.layer is not None
            self.layer.compute()
        return self.held

    @property
    def shape(self) -> Dims:
        return Dims(self.value.shape)

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        assert self.layer is None

    def set_dimension_name(self, index: int, name: str) -> None:
        assert index < self.value.dim()


Rule = Callable[[Any, list[Any]], Any]
"""Layer and values of its inputs -> values of its outputs, one or a list."""


class ILayer:
    """A layer; its rule is run when a value is asked for, after the builder has set its attributes."""

    def __init__(
        self, kind: Any, inputs: Sequence[ITensor], dtypes: Sequence[DataType], rule: Rule, **attributes: Any
    ) -> None:
        self.type, self.name, self.metadata, self._rule = kind, "", "", rule
        self.inputs: dict[int, ITensor] = dict(enumerate(inputs))
        self.outputs = [ITensor("", dtype, self) for dtype in dtypes]
        for name, value in attributes.items():
            setattr(self, name, value)

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))

    def get_input(self, index: int) -> ITensor:
        return self.inputs[index]

    def set_input(self, index: int, tensor: ITensor) -> None:
        self.inputs[index] = tensor

    def get_output(self, index: int) -> ITensor:
        return self.outputs[index]

    def compute(self) -> None:
        found = self._rule(self, [self.inputs[index].value for index in sorted(self.inputs)])
        for output, value in zip(self.outputs, found if isinstance(found, list) else [found], strict=True):
            output.held = as_computed(value, output.dtype)


def __getattr__(name: str) -> Any:
    """Return one class for all kinds: the builder turns layers into them by assigning ``__class__``."""
    if re.fullmatch("I[A-Za-z0-9]+Layer", name):
        return ILayer
    raise AttributeError(name)


def _same(*tensors: ITensor) -> DataType:
    """Return the one type of operands, which a strongly typed network does not convert."""
    types = {tensor.dtype for tensor in tensors}
    assert len(types) == 1, f"operands have types {sorted(types)}"
    return tensors[0].dtype


_ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    **{"SUM": torch.add, "PROD": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum, "SUB": torch.sub},
    **{"POW": torch.pow, "AND": torch.logical_and, "OR": torch.logical_or, "XOR": torch.logical_xor},
    **{"EQUAL": torch.eq, "GREATER": torch.gt, "LESS": torch.lt},
}


_COMPARISONS = ("EQUAL", "GREATER", "LESS", "AND", "OR", "XOR")


def _elementwise(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    left, right = values
    assert left.dim() == right.dim(), f"ranks {left.dim()} and {right.dim()}"
    name = layer.op
    if name in ("DIV", "FLOOR_DIV"):
        whole = name == "FLOOR_DIV" or not left.is_floating_point()
        return torch.div(left, right, rounding_mode="floor" if whole else None)
    return _ELEMENTWISE[name](left, right)


def _matmul(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    operations = layer.op0, layer.op1
    left, right = (
        value.transpose(-1, -2) if operation == MatrixOperation.TRANSPOSE else value
        for value, operation in zip(values, operations, strict=True)
    )
    return left @ right


def _shuffle(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    value, *rest = values
    first, dims, second = (
        getattr(layer, name, None) for name in ("first_transpose", "reshape_dims", "second_transpose")
    )
    if first is not None:
        value = value.permute(*first)
    shape = rest[0].tolist() if rest else dims
    if shape is not None:
        if getattr(layer, "zero_is_placeholder", True):
            shape = [value.shape[index] if size == 0 else size for index, size in enumerate(shape)]
        value = value.reshape(tuple(shape))
    return value if second is None else value.permute(*second)


def _slice(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    given = {index: layer.inputs[index].value.flatten().tolist() for index in layer.inputs if 0 < index < 4}
    names = ("start", "shape", "stride")
    starts, sizes, strides = (
        given.get(index + 1, list(getattr(layer, name))) for index, name in enumerate(names)
    )
    value = values[0]
    for axis, (start, size, stride) in enumerate(zip(starts, sizes, strides, strict=True)):
        rows = start + stride * torch.arange(size)
        if getattr(layer, "mode", None) not in (SampleMode.FILL, SampleMode.CLAMP):
            assert size == 0 or int(rows.max()) < value.shape[axis], f"slice beyond axis {axis}"
        value = value.index_select(axis, rows.clamp(0, value.shape[axis] - 1))
    return value


_REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.sum,
    "AVG": torch.mean,
    "MAX": torch.amax,
    "MIN": torch.amin,
}
_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SQRT": torch.sqrt,
    "EXP": torch.exp,
    "SIN": torch.sin,
    "COS": torch.cos,
    "ABS": torch.abs,
    "LOG": torch.log,
    "ROUND": torch.round,
    "NOT": torch.logical_not,
}
_ACTIVATION = {"RELU": torch.relu, "SIGMOID": torch.sigmoid, "TANH": torch.tanh}


def _spread(scale: torch.Tensor, value: torch.Tensor, axis: int) -> torch.Tensor:
    return (
        scale
        if scale.numel() == 1
        else scale.reshape([-1 if each == axis else 1 for each in range(value.dim())])
    )


def _quantize(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    scaled = values[0] / _spread(values[1], values[0], getattr(layer, "axis", 0))
    return plugins.rounded(scaled, layer.outputs[0].dtype)


def _dequantize(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    return values[0].float() * _spread(values[1], values[0], getattr(layer, "axis", 0))


def _gather(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    value, index = values
    axis = getattr(layer, "axis", 0)
    if getattr(layer, "mode", None) == GatherMode.ELEMENT:
        return value.gather(axis, index.long())
    found = value.index_select(axis, index.flatten().long())
    return found.reshape(*value.shape[:axis], *index.shape, *value.shape[axis + 1 :])


def _reduce(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
    axes = [axis for axis in range(8) if layer.axes >> axis & 1]
    return _REDUCE[layer.op](values[0], dim=axes, keepdim=layer.keep_dims)


def _adder(kind: str, rule: Rule, *names: str, tensors: int = 1, dtype: Any = None) -> Callable[..., ILayer]:
    """Return the method that adds a layer of so many tensors, followed by attributes."""

    def add(self: Any, *arguments: Any, **named: Any) -> ILayer:
        attributes = {**dict(zip(names, arguments[tensors:], strict=False)), **named}
        inputs = list(arguments[:tensors])
        if "right" in attributes:
            inputs.append(attributes.pop("right"))
        if kind in ("GATHER", "QUANTIZE", "DEQUANTIZE"):
            found = inputs[0].dtype
        else:
            found = _same(*inputs[kind == "SELECT" :])
        if attributes.get("op") in _COMPARISONS:
            found = bool
        return self._add(kind, inputs, [attributes.pop("dtype", dtype or found)], rule, **attributes)

    return add


class INetworkDefinition:
    """A network."""

    def __init__(self, builder: Builder, flags: int) -> None:
        self.builder, self.flags, self.name = builder, flags, "network"
        self.inputs: dict[str, ITensor] = {}
        self.layers: list[ILayer] = []
        self.outputs: list[ITensor] = []

    num_layers = property(lambda self: len(self.layers))
    num_outputs = property(lambda self: len(self.outputs))
    num_inputs = property(lambda self: len(self.inputs))

    def get_flag(self, flag: int) -> Any:
        return self.flags >> int(flag) & 1 == 1

    def get_layer(self, index: int) -> ILayer:
        return self.layers[index]

    def get_output(self, index: int) -> ITensor:
        return self.outputs[index]

    def get_input(self, index: int) -> ITensor:
        return list(self.inputs.values())[index]

    def mark_output(self, tensor: ITensor) -> None:
        self.outputs.append(tensor)

    def unmark_output(self, tensor: ITensor) -> None:
        self.outputs.remove(tensor)

    def set_weights_name(self, weights: Weights, name: str) -> Any:
        weights.name = name
        return True

    def mark_weights_refittable(self, name: str) -> Any:
        return True

    def add_input(self, name: str, dtype: DataType, shape: Sequence[int]) -> ITensor:
        value = EXAMPLE.get(name)
        if value is None:
            value = torch.zeros([1 if size == -1 else size for size in shape])
        fits = [size in (-1, given) for size, given in zip(shape, value.shape, strict=True)]
        assert all(fits), f"{name}: {list(shape)} is not {list(value.shape)}"
        self.inputs[name] = ITensor(name, dtype, None, as_computed(value, dtype))
        return self.inputs[name]

    def _add(self, *arguments: Any, **attributes: Any) -> ILayer:
        layer = ILayer(*arguments, **attributes)
        layer.name = f"(Unnamed Layer* {len(self.layers)})"
        for index, output in enumerate(layer.outputs):
            output.name = f"{layer.name}_output_{index}"
        self.layers.append(layer)
        return layer

    def add_constant(self, shape: Sequence[int], weights: Weights) -> ILayer:
        rule: Rule = lambda layer, values: weights.values(shape)  # noqa: E731
        return self._add(LayerType.CONSTANT, [], [weights.dtype], rule, weights=weights)

    add_elementwise = _adder("ELEMENTWISE", _elementwise, "op", tensors=2)
    add_matrix_multiply = _adder("MATRIX_MULTIPLY", _matmul, "op0", "right", "op1")
    add_shuffle = _adder("SHUFFLE", _shuffle)
    add_slice = _adder("SLICE", _slice, "start", "shape", "stride")
    add_cast = _adder("CAST", lambda layer, values: values[0], "dtype")
    add_identity = _adder("IDENTITY", lambda layer, values: values[0])
    add_shape = _adder("SHAPE", lambda layer, values: torch.tensor(values[0].shape), dtype=int64)
    add_unary = _adder("UNARY", lambda layer, values: _UNARY[layer.op](values[0]), "op")
    add_activation = _adder("ACTIVATION", lambda layer, values: _ACTIVATION[layer.op](values[0]), "op")
    add_reduce = _adder("REDUCE", _reduce, "op", "axes", "keep_dims")
    add_gather = _adder("GATHER", _gather, "axis", tensors=2)
    add_gather_v2 = _adder("GATHER", _gather, "mode", tensors=2)
    add_select = _adder("SELECT", lambda layer, values: torch.where(*values), tensors=3)
    add_quantize = _adder("QUANTIZE", _quantize, "dtype", tensors=2)
    add_dequantize = _adder("DEQUANTIZE", _dequantize, "dtype", tensors=2)

    def add_concatenation(self, tensors: Sequence[ITensor]) -> ILayer:
        def joined(layer: Any, values: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat(values, dim=getattr(layer, "axis", 0))

        return self._add(LayerType.CONCATENATION, tensors, [_same(*tensors)], joined)

    def add_plugin_v2(self, tensors: Sequence[ITensor], plugin: plugins.Plugin) -> ILayer:
        dtypes, rule = plugin.prepared([tensor.dtype for tensor in tensors])
        return self._add(
            LayerType.PLUGIN_V2, tensors, dtypes, lambda layer, values: rule(values), plugin=plugin
        )


class PluginField:
    """A parameter of a plugin."""

    def __init__(self, name: str, data: Any, kind: Any = None) -> None:
        self.name, self.data, self.type = name, np.asarray(data), kind


class PluginFieldCollection(list[PluginField]):
    """Parameters of a plugin."""


class _Creator:
    def __init__(self, name: str) -> None:
        self.name = name

    def create_plugin(self, name: str, fields: Sequence[PluginField], phase: Any = None) -> plugins.Plugin:
        values = {each.name: each.data.tolist() for each in fields}
        return plugins.Plugin(
            self.name,
            {name: v[0] if isinstance(v, list) and len(v) == 1 else v for name, v in values.items()},
        )


class _Registry:
    def get_plugin_creator(self, name: str, version: str, namespace: str) -> _Creator:
        assert namespace == "tensorrt_llm" and name in plugins.RULES, f"plugin {name} has no stand-in"
        return _Creator(name)


def get_plugin_registry() -> _Registry:
    return _Registry()


IPluginCreator = _Creator
IPluginV2 = plugins.Plugin


class IHostMemory(bytes):
    """Bytes of an engine or a timing cache."""

    def __enter__(self) -> IHostMemory:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ITimingCache:
    """A timing cache."""

    def serialize(self) -> IHostMemory:
        return IHostMemory(b"stand-in")


class IOptimizationProfile:
    """Ranges of the shapes of inputs."""

    def set_shape(self, name: str, *shapes: Sequence[int]) -> None:
        low, best, high = shapes
        ordered = [a <= b <= c for a, b, c in zip(low, best, high, strict=True)]
        assert all(ordered), f"{name}: {shapes}"

    set_shape_input = set_shape


class IBuilderConfig:
    """Settings of a build."""

    def __init__(self) -> None:
        self.flags: set[Any] = set()
        self.profiles: list[IOptimizationProfile] = []
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self._cache = ITimingCache()

    num_optimization_profiles = property(lambda self: len(self.profiles))

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag)

    def create_timing_cache(self, content: bytes) -> ITimingCache:
        return self._cache

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: Any) -> None:
        self._cache = cache

    def get_timing_cache(self) -> ITimingCache:
        return self._cache

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1


class Builder:
    """Makes networks and computes them."""

    def __init__(self, logger: Any) -> None:
        pass

    def create_network(self, flags: int) -> INetworkDefinition:
        return INetworkDefinition(self, flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory:
        for layer in network.layers:
            layer.compute()
        NETWORKS.append(network)
        return IHostMemory(b"stand-in")


class ICudaEngine:
    """A loaded engine, which there is never."""


class Runtime(ICudaEngine):
    """Stand for what loads engines."""


class PluginTensorDesc:
    """Named in annotations only, as the two others."""


Refitter = IParser = PluginTensorDesc


class ILogger:
    """Base of loggers."""

    Severity = LayerType

    def __init__(self, *_: object) -> None:
        pass


class Logger(ILogger):
    """A logger."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
    min_severity = INFO

    def log(self, severity: Any, text: str) -> None:
        pass
