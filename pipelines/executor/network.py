"""A network in OpenVINO: its operators, how it is compiled, and how a step goes through it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.available_resources import has_avx2_alone
from pipelines.errors import EngineLoadError
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.step import StepInputs
from pipelines.manifest import EngineFiles


def operator_library(files: EngineFiles) -> str | None:
    """Load the operators of an engine, after OpenVINO was imported.

    Args:
        files: Files of the engine.

    Returns:
        A path by which OpenVINO finds the library; None if the engine has none.

    Raises:
        EngineLoadError: The library has changed, or does not fit the installed OpenVINO.
    """
    name = next((name for name in files.manifest["files"] if name.endswith(".so")), None)
    if name is None:
        return None
    content = files.read(name)
    try:
        return _loaded(content)
    except OSError as error:
        raise EngineLoadError(
            f"the engine's operators cannot be loaded: {files.path(name)}: {error}",
            f"remove the engine (rm -r {files.directory}) and run 'draftproof engines'",
        ) from None


@functools.cache
def _loaded(content: bytes) -> str:
    """Load bytes that were checked from memory, where no other program can change them.

    The library stays as long as the process, because networks that use it may outlive any other reference.
    """
    file = os.memfd_create("draftproof-operators")
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(content)
    path = f"/proc/self/fd/{file}"
    ctypes.CDLL(path)
    return path


class Shape(NamedTuple):
    """What the shapes of a step depend on, apart from its context, if no head reads features in it."""

    num_tokens: int
    num_rows: int
    num_sequences: int

    @classmethod
    def of(cls, inputs: StepInputs) -> Shape | None:
        """Return the shape of a step; None if a head reads features in it."""
        if inputs.features is not None and len(inputs.features):
            return None
        return cls(len(inputs.input_ids), len(inputs.logits_rows), len(inputs.past_lens))


class Network:
    """A compiled network, and its inputs where it reads them.

    Args:
        compiled: ``openvino.CompiledModel``.
        caches: Name -> ``openvino.Tensor`` of its keys and values.
        tensor: ``openvino.Tensor``.
    """

    def __init__(self, compiled: Any, caches: dict[str, Any], tensor: Any) -> None:
        self._compiled = compiled  # the request does not keep the network alive
        self._request = compiled.create_infer_request()
        self._tensor = tensor
        self._inputs: dict[str, npt.NDArray[Any]] = {}
        for name, cache in caches.items():
            self._request.set_tensor(name, cache)

    def compute(self, inputs: StepInputs, timeout_s: float) -> npt.NDArray[np.float32] | None:
        """Return the logits, which the next step overwrites; None if the step has not ended in time."""
        self._give(inputs)
        self._request.start_async()  # infer() would copy every output
        if not self._request.wait_for(int(timeout_s * 1000)):
            return None
        logits: npt.NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits

    def states(self) -> npt.NDArray[np.float32]:
        """Return the second output of the last step, which the next step overwrites."""
        states: npt.NDArray[np.float32] = self._request.get_output_tensor(1).data
        return states

    def _give(self, inputs: StepInputs) -> None:
        """Copy the inputs to where OpenVINO reads them. Handing over an array of a new shape is slow."""
        for name, array in vars(inputs).items():
            if array is None:  # of a trained head
                continue
            current = self._inputs.get(name)
            if current is not None and current.shape == array.shape:
                current[...] = array
                continue
            copy = array.copy()
            self._request.set_tensor(name, self._tensor(copy, shared_memory=True))
            self._inputs[name] = copy  # only now: OpenVINO reads the current one until then

    def has_ended(self) -> bool:
        """Return whether the last step has ended."""
        try:
            return bool(self._request.wait_for(0))
        except RuntimeError:  # it has failed
            return True

    def cancel(self) -> None:
        """End the step that is running, if there is one."""
        with contextlib.suppress(RuntimeError):  # how a cancelled step ends
            self._request.cancel()
            self._request.wait()


class Model:
    """A network that can be compiled, for any step or for steps of one shape.

    Args:
        openvino: The module.
        network: Content of ``engine.xml``.
        weights: ``openvino.Tensor`` of ``engine.bin``, which has to outlive the compiled networks.
        config: Description of the engine.
        operators: See ``operator_library``.
    """

    def __init__(
        self, openvino: Any, network: str, weights: Any, config: EngineConfig, operators: str | None
    ) -> None:
        self._config = config
        self._core = openvino.Core()
        self._core.get_versions("CPU")  # registers the attention operator, which is needed to read the file
        if operators is not None:
            self._core.add_extension(operators)
        self._model = self._core.read_model(network, weights)
        for node in self._model.get_ops():
            if node.get_type_name() == "PagedAttentionExtension":
                info = node.get_rt_info()  # is lost when a network is saved
                info["num_k_heads"] = info["num_v_heads"] = config.num_kv_heads
                info["k_head_size"] = info["v_head_size"] = config.head_size
        # Copied here and not for each shape: a copy holds Python's lock, and a thread of the lowest priority
        # that compiles shapes would hold it for half a second beside others.
        self._of_one_shape = self._model.clone()

    def compiled(self, shape: Shape | None = None) -> Any:
        """Return an ``openvino.CompiledModel`` for steps of a shape, or for any step.

        Not from two threads at once: OpenVINO then corrupts memory.
        """
        model = self._model if shape is None else self._of_shape(shape)
        threads = {"INFERENCE_NUM_THREADS": str(self._config.num_threads)}
        properties = {**self._config.compile_properties, **threads, **processor_properties(model)}
        return self._core.compile_model(model, "CPU", properties)

    def _of_shape(self, shape: Shape) -> Any:
        sizes = {"input_ids": shape.num_tokens, "position_ids": shape.num_tokens}
        sizes |= {"logits_rows": shape.num_rows, "past_lens": shape.num_sequences}
        sizes |= dict.fromkeys(("subsequence_begins", "block_indices_begins"), shape.num_sequences + 1)
        if self._config.reads_features:
            sizes |= {"hidden": 1, "hidden_rows": shape.num_tokens, "features": 0}
        if self._config.state_bytes:
            sizes |= {"slots": shape.num_sequences}
        others = {port.get_any_name(): list(port.get_partial_shape())[1:] for port in self._model.inputs}
        self._of_one_shape.reshape({name: [size, *others[name]] for name, size in sizes.items()})
        return self._of_one_shape


def processor_properties(model: Any) -> dict[str, str]:
    """Return the properties that a network needs on this processor.

    With AVX2 alone OpenVINO adds products of inputs and weights of 8 bits in 16 bits, where sums are cut off.
    Without these products it multiplies the rounded inputs in float32.
    """
    rounds_inputs = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    return {"LP_TRANSFORMS_MODE": "NO"} if rounds_inputs and has_avx2_alone() else {}
