"""Injects faults into the draft engine of a running server, controlled by a file.

The runtime itself fails or hangs: the first operation of the draft's network raises or does not return. An
engine that is gone has freed its network and memory and is loaded again later. Nothing in ``pipelines`` knows
about faults: a test adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import openvino

from pipelines.executor import engine, loading
from pipelines.executor.engine import Engine
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.step import StepInputs
from pipelines.executor.weights import Weights
from pipelines.manifest import EngineFiles

FAILS, HANGS, GONE, HEALTHY = "fails", "hangs", "gone", "healthy"
SLOW = "slow"  # so slow that its requests still run when a fault begins
_SLOW_STEP_S = 0.005


def add_faults(run_directory: Path, model: str) -> Path:
    """Make a rendered model obey a file, and return the file."""
    state = run_directory / "draft_fault"
    state.write_text(HEALTHY)
    with (run_directory / "model_repository" / model / "1" / "model.py").open("a") as source:
        source.write(f"\n\nfrom tests.support.draft_faults import install\n\ninstall({str(state)!r})\n")
    return state


def install(state_file: str) -> None:
    """Make draft engines of this process obey a file from now on."""
    state = Path(state_file)
    compile_model = openvino.Core.compile_model
    prepare = engine._compile
    this_thread = threading.local()  # both engines are loaded at once

    def compile_with_gate(module: Any, files: EngineFiles, weights: Weights, config: EngineConfig) -> Any:
        this_thread.role = config.role
        return prepare(module, files, weights, config)

    def compile_model_with_gate(core: Any, model: Any, *rest: Any) -> Any:
        if this_thread.role == "draft":
            _put_gate_before(model.input("input_ids"), model, state)
        return compile_model(core, model, *rest)

    class UnloadableEngine(Engine):
        """An engine that can be unloaded and loaded again."""

        def __init__(self, files: EngineFiles, num_blocks: int, **options: Any) -> None:
            super().__init__(files, num_blocks, **options)
            self._made_of: dict[str, Any] = {"files": files, "num_blocks": num_blocks, **options}

        def step(self, inputs: StepInputs) -> Any:
            if self.config.role == "draft":
                if state.read_text() == SLOW:
                    time.sleep(_SLOW_STEP_S)
                if state.read_text() == GONE:
                    self._network = None  # type: ignore[assignment]
                    for networks in (self._small_shapes, self._untried_networks, self._small_networks):
                        networks.clear()  # type: ignore[attr-defined]
                    self._kv.clear()
                elif self._network is None:
                    super().__init__(**self._made_of)
                    loading.check(self)
            return super().step(inputs)

    openvino.Core.compile_model = compile_model_with_gate
    engine._compile = compile_with_gate
    loading.Engine = UnloadableEngine  # type: ignore[misc]


def _put_gate_before(port: Any, model: Any, state: Path) -> None:
    class Gate(openvino.Op):  # type: ignore[misc]
        """Passes its input on, unless the file says otherwise."""

        def __init__(self, inputs: Any) -> None:
            super().__init__(self, inputs)

        def validate_and_infer_types(self) -> None:
            self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

        def clone_with_new_inputs(self, inputs: Any) -> Gate:
            return Gate(inputs)

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Any, inputs: Any) -> bool:
            if state.read_text() == FAILS:
                raise RuntimeError("the device is gone")
            while state.read_text() == HANGS:
                time.sleep(0.01)
            outputs[0].shape = inputs[0].shape
            outputs[0].data[...] = inputs[0].data
            return True

    readers = port.get_target_inputs()
    gate = Gate([port])
    for reader in readers:
        reader.replace_source_output(gate.output(0))
    model.validate_nodes_and_infer_types()
