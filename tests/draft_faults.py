"""Faults of a draft engine in a served model, switched by a file while the server runs.

The runtime itself fails and hangs: an operation of the draft's network, its first one, raises or does not
return. An engine that is gone has given its network and its memory back, and is loaded again afterwards.
Nothing in ``pipelines`` knows of this: a test adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import openvino

from pipelines.executor import executor
from pipelines.executor.engine import Engine
from pipelines.executor.step import StepInputs

FAILS, HANGS, GONE, HEALTHY = "fails", "hangs", "gone", "healthy"


def add_faults(run_directory: Path, model: str) -> Path:
    """Have a rendered model obey a file, which is returned."""
    state = run_directory / "draft_fault"
    state.write_text(HEALTHY)
    with (run_directory / "model_repository" / model / "1" / "model.py").open("a") as source:
        source.write(f"\n\nfrom tests.draft_faults import install\n\ninstall({str(state)!r})\n")
    return state


def install(state_file: str) -> None:
    """Let draft engines of this process obey a file from now on."""
    state = Path(state_file)
    read_model = openvino.Core.read_model

    def read_with_gate(core: Any, path: Path) -> Any:
        model = read_model(core, path)
        if path.parent.name == "draft":
            _put_gate_before(model.input("input_ids"), model, state)
        return model

    class UnloadableEngine(Engine):
        """Goes and comes back."""

        def __init__(self, directory: Path, num_blocks: int) -> None:
            super().__init__(directory, num_blocks)
            self._made_of = directory, num_blocks

        def step(self, inputs: StepInputs) -> Any:
            if self.config.role == "draft":
                if state.read_text() == GONE:
                    self._request = self._compiled = None
                    self._kv.clear()
                elif self._request is None:
                    super().__init__(*self._made_of)
            return super().step(inputs)

    openvino.Core.read_model = read_with_gate
    executor.Engine = UnloadableEngine  # type: ignore[misc]


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
