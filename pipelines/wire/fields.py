"""Reads the table of tensors in ``fields.json``, from which ``config.pbtxt`` and the reference are made.

A new parameter is a field of ``CompletionRequest``, an entry there, a line in each function that reads or
writes requests (they name every field), the code that gives it meaning, and a test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class InputTensor:
    """One tensor of a request.

    Attributes:
        datatype: KServe's name of the type: BOOL, INT32, UINT64, FP32 or BYTES.
        field: Field of ``CompletionRequest`` whose value it is; "" for none.
        name: Name at the text models; "" if only engines have it.
        engine: Name at engines, as TensorRT-LLM has it; "" if it ends at the text models.
        dims: Shape without the batch dimension; -1 for any size.
        models: Engines that have it: all, or those with a draft.
        is_required: Whether every request has it.
        passed_on: Whether an ensemble hands it to the engine as it is.
        in_ensemble: Whether ensembles have it. In Triton 2.51 a step behind a decoupled one may have no input
            of the ensemble itself, NVIDIA's tensors between the steps know neither where the prompt ends nor
            predictions, and an ensemble has one arm.
        values: Values that are accepted, for the reference.
        effect: What it does, for the reference.
    """

    datatype: str
    field: str = ""
    name: str = ""
    engine: str = ""
    dims: tuple[int, ...] = (1,)
    models: Literal["all", "draft"] = "all"
    is_required: bool = False
    passed_on: bool = False
    in_ensemble: bool = True
    values: str = ""
    effect: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return self.dims == (-1,)


@dataclass(frozen=True, kw_only=True)
class OutputTensor:
    """One tensor of a response.

    Attributes:
        name: Name at engines and text models.
        datatype: KServe's name of the type.
        dims: Shape without the batch dimension; -1 for any size, a text for a placeholder.
        models: Who has it: all, only those with a draft, engines, text models, the router.
    """

    name: str
    datatype: str
    dims: tuple[int | str, ...] = (1,)
    models: Literal["all", "draft", "engine", "text", "router"] = "all"


def _read(kind: type[Any], entries: list[dict[str, Any]]) -> list[Any]:
    return [kind(**{**entry, "dims": tuple(entry.get("dims", (1,)))}) for entry in entries]


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_INPUTS: list[InputTensor] = _read(InputTensor, _TABLE["inputs"])
_OUTPUTS: list[OutputTensor] = _read(OutputTensor, _TABLE["outputs"])

TEXT_INPUTS: Mapping[str, InputTensor] = {each.name: each for each in _INPUTS if each.name}
"""Inputs of the text models by name."""

ENGINE_INPUTS: Mapping[str, InputTensor] = {each.engine: each for each in _INPUTS if each.engine}
"""Inputs of engines by name."""

OUTPUTS: Mapping[str, OutputTensor] = {each.name: each for each in _OUTPUTS}
"""Outputs by name. The counts of drafting in a continued answer are those of the rest."""

_OUTPUTS_OF = {
    "text": ("all", "draft", "text", "router"),
    "ensemble": ("all", "draft", "text"),
    "speculative": ("all", "draft", "engine"),
    "target_alone": ("all", "engine"),
}


def declared_inputs(model: str) -> list[str]:
    """Return the inputs of a model as lines of ``config.pbtxt``.

    Args:
        model: ``text``, ``ensemble``, ``speculative`` or ``target_alone``.
    """
    if model in ("text", "ensemble"):
        found = [each for each in TEXT_INPUTS.values() if each.in_ensemble or model == "text"]
        return [_declared("input", each.name, each) for each in found]
    found = [each for each in ENGINE_INPUTS.values() if each.models == "all" or model == "speculative"]
    return [_declared("input", each.engine, each) for each in found]


def declared_outputs(model: str) -> list[str]:
    """Return the outputs of a model as lines of ``config.pbtxt``; see ``declared_inputs``."""
    return [
        _declared("output", each.name, each) for each in OUTPUTS.values() if each.models in _OUTPUTS_OF[model]
    ]


def _declared(kind: str, name: str, tensor: InputTensor | OutputTensor) -> str:
    datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    dims = ", ".join(map(str, tensor.dims))
    optional = isinstance(tensor, InputTensor) and not tensor.is_required
    ending = " optional: true" if optional else ""
    return f'{kind} [{{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}]{ending} }}]'
