"""One compiled network and the keys and values it works on.

Loads an engine directory (``engine.xml``, ``engine.bin``, ``engine.json``; ``build/openvino_engine.py``
writes it) and computes steps. It decides nothing: what a step holds comes from the scheduler.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineLoadError
from pipelines.executor.step import StepInputs

FORMAT_VERSION = 2


STEP_TIMEOUT_S = {"draft": 5.0, "target": 120.0}
"""Longest step by role: requests can go on without a draft, but not without the target."""


@dataclass(frozen=True)
class EngineConfig:
    """What ``engine.json`` says, as far as running the engine needs it.

    Attributes:
        vocab_size: Columns of the logits.
        end_ids: Tokens that end a text.
        max_position_embeddings: Longest sequence the network was trained for, in tokens.
        kv_cache_dtype: "float32" or "float16".
        kv_block_size: Positions in a block.
        num_threads: Threads of a step. Bits were compared within one thread count, so it is part of
            the engine, not of the machine.
        weight_bytes_per_step: Bytes of weights that a step reads at least, whatever the batch.
        compile_properties: Passed to OpenVINO.
    """

    role: str
    recipe: str
    openvino_version: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    end_ids: tuple[int, ...]
    kv_block_size: int
    kv_cache_dtype: str
    num_threads: int
    weight_bytes_per_step: int
    compile_properties: dict[str, str]

    @classmethod
    def read(cls, directory: Path) -> EngineConfig:
        """Read ``engine.json``.

        Raises:
            EngineLoadError: It is missing, incomplete, or of another format version.
        """
        path = directory / "engine.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version = document["format_version"]
            fields = {field.name: document[field.name] for field in dataclasses.fields(cls)}
            config = cls(**{**fields, "end_ids": tuple(fields["end_ids"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the engine description cannot be read",
                values=f"{path}: {error!r}",
                limit="an engine directory holds engine.json, engine.xml and engine.bin",
                remedy="run 'make engines'",
            ) from error
        if version != FORMAT_VERSION:
            raise EngineLoadError(
                "the engine has another format",
                values=f"format_version={version} in {path}",
                limit=f"this release reads format {FORMAT_VERSION}",
                remedy="run 'make engines'",
            )
        return config


class Engine:
    """A compiled network with its KV cache.

    Args:
        directory: Engine directory.
        num_blocks: KV blocks to allocate, the scratch block included.

    Raises:
        EngineLoadError: Files are missing, or made for another OpenVINO, or do not compile.
    """

    def __init__(self, directory: Path, num_blocks: int) -> None:
        import openvino

        self.config = EngineConfig.read(directory)
        installed = openvino.__version__.split("-")[0]
        if installed.split(".")[:2] != self.config.openvino_version.split(".")[:2]:
            raise EngineLoadError(
                "the engine was built with another OpenVINO",
                values=f"built with {self.config.openvino_version}, installed {installed}",
                limit="major and minor version must be equal: the attention operator is not a stable format",
                remedy="run 'make engines'",
            )
        try:
            compiled = _compile(openvino, directory, self.config)
        except RuntimeError as error:
            raise EngineLoadError(
                "the engine does not compile on this machine",
                values=f"{directory}: {str(error).splitlines()[0]}",
                limit="the network needs an x86-64 processor with AVX2",
                remedy="run 'make doctor', then 'make clean-engines engines'",
            ) from error
        self._tensor = openvino.Tensor
        self._request = compiled.create_infer_request()
        self._kv: list[npt.NDArray[Any]] = []
        for port in compiled.inputs:
            name = port.get_any_name()
            if name.startswith(("key_cache.", "value_cache.")):
                shape = [num_blocks, *(dim.get_length() for dim in list(port.get_partial_shape())[1:])]
                tensor = openvino.Tensor(port.get_element_type(), openvino.Shape(shape))
                tensor.data[...] = 0
                self._request.set_tensor(name, tensor)
                self._kv.append(tensor.data)
        self._compiled = compiled  # the request does not keep its network alive
        self._inputs: StepInputs | None = None

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute one step and write its keys and values.

        Args:
            inputs: At least two tokens, see ``step.pack``.

        Returns:
            float32 [n, vocab_size], one row for each of ``inputs.logits_rows``; a view that the next
            step overwrites.

        Raises:
            TimeoutError: The step did not end in ``STEP_TIMEOUT_S``.
            RuntimeError: The runtime failed, or a step before did not end yet.
        """
        # OpenVINO reads the arrays in place and does not hold them. infer() would do the same and then
        # copy every output.
        for name, array in vars(inputs).items():
            self._request.set_tensor(name, self._tensor(array, shared_memory=True))  # raises while one runs
        self._inputs = inputs  # not before: a step that was given up still reads those it was given
        self._request.start_async()
        if not self._request.wait_for(int(STEP_TIMEOUT_S[self.config.role] * 1000)):
            # Further steps fail at once until this one is done, so it writes over nobody's blocks.
            raise TimeoutError(f"a step took more than {STEP_TIMEOUT_S[self.config.role]:g} s")
        logits: npt.NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""
        for tensor in self._kv:
            tensor[destination] = tensor[source]


def _compile(openvino: Any, directory: Path, config: EngineConfig) -> Any:
    core = openvino.Core()
    core.get_versions("CPU")  # registers the attention operator, without which the file cannot be read
    model = core.read_model(directory / "engine.xml")
    for node in model.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            info = node.get_rt_info()  # lost when a network is saved
            info["num_k_heads"] = info["num_v_heads"] = config.num_kv_heads
            info["k_head_size"] = info["v_head_size"] = config.head_size
    properties = {**config.compile_properties, "INFERENCE_NUM_THREADS": str(config.num_threads)}
    return core.compile_model(model, "CPU", properties)
