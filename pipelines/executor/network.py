"""A network in OpenVINO: its operators, how it is compiled, and how a step goes through it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any

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


def compile_networks(
    openvino: Any, network: str, weights: Any, config: EngineConfig, operators: str | None
) -> tuple[Any, Any]:
    """Return the network for any step, and for a single token, or None: a draft computes most tokens alone.

    OpenVINO plans the memory of each operation again in each step, which takes a fifth of a small draft's,
    unless all shapes are fixed. Products of our own do not copy the weights for a second network.
    """
    core = openvino.Core()
    core.get_versions("CPU")  # registers the attention operator, which is needed to read the file
    if operators is not None:
        core.add_extension(operators)
    model = core.read_model(network, weights)
    for node in model.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            info = node.get_rt_info()  # is lost when a network is saved
            info["num_k_heads"] = info["num_v_heads"] = config.num_kv_heads
            info["k_head_size"] = info["v_head_size"] = config.head_size
    properties = {
        **config.compile_properties,
        "INFERENCE_NUM_THREADS": str(config.num_threads),
        **processor_properties(model),
    }
    compiled = core.compile_model(model, "CPU", properties)
    if config.role != "draft" or config.linear != "draftproof":
        return compiled, None
    num_sequences = config.num_threads  # see ``step.with_sequences``
    sizes = {"input_ids": 1, "position_ids": 1, "logits_rows": 1, "past_lens": num_sequences}
    if config.reads_features:
        sizes |= {"hidden": 1, "hidden_rows": 1, "features": 0}
    begins = dict.fromkeys(("subsequence_begins", "block_indices_begins"), num_sequences + 1)
    shapes = {port.get_any_name(): list(port.get_partial_shape())[1:] for port in model.inputs}
    model.reshape({name: [size, *shapes[name]] for name, size in {**sizes, **begins}.items()})
    return compiled, core.compile_model(model, "CPU", properties)


def processor_properties(model: Any) -> dict[str, str]:
    """Return the properties that a network needs on this processor.

    With AVX2 alone OpenVINO adds products of inputs and weights of 8 bits in 16 bits, where sums are cut off.
    Without these products it multiplies the rounded inputs in float32.
    """
    rounds_inputs = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    return {"LP_TRANSFORMS_MODE": "NO"} if rounds_inputs and has_avx2_alone() else {}
