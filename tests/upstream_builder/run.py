"""Run upstream's ``trtllm-build``: ``python -m tests.upstream_builder.run SOURCE EXAMPLE COMMANDS``

SOURCE is a source tree of TensorRT-LLM, EXAMPLE an .npy file of token ids, COMMANDS a JSON file of lists
of options. With one rank, the logits of the
network after each of these tokens are written beside the engine, as ``logits.npy``.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers  # noqa: F401  imported before modules are replaced

_UNUSED = (
    *("tensorrt_llm.bindings", "tensorrt_llm._torch", "tensorrt_llm.executor", "tensorrt_llm.inputs"),
    *("tensorrt_llm.llmapi.llm_args", "tensorrt_llm.llmapi.utils", "tensorrt_llm.runtime.generation"),
    *("tensorrt_llm.quantization.utils.fp8_utils", "tensorrt_llm.quantization.quantize_by_modelopt"),
)
"""Modules of upstream that a builder of decoders does not call."""

_HOLLOW = ("tensorrt_llm", "tensorrt_llm.llmapi", "tensorrt_llm.runtime")
"""Packages whose ``__init__`` is not run, because it imports the whole runtime."""


class _Word(str, enum.Enum):
    __str__ = str.__str__

    @staticmethod
    def _generate_next_value_(name: str, *_: Any) -> str:
        return name


def _word(name: str) -> type[_Word]:
    """Return the only name of ``strenum``, which enum has since Python 3.11."""
    if name.startswith("__"):  # such as __file__, for which inspect asks
        raise AttributeError(name)
    return _Word


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unused

    def __or__(cls, other: Any) -> Any:
        return cls

    def __int__(cls) -> int:
        return 0

    __ror__ = __or__


class Unused(metaclass=_Meta):
    """Any class, function or value of a module that is not used."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unused()

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else Unused()


class _UnusedModule(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unused


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds those, and whatever upstream's files import that is not installed."""

    def __init__(self, source: Path, *, is_last: bool) -> None:
        self._source, self._is_last = str(source), is_last

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        is_unused = any(name == each or name.startswith(f"{each}.") for each in _UNUSED)
        if is_unused if not self._is_last else self._is_asked_by_upstream():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def _is_asked_by_upstream(self) -> bool:
        frame = sys._getframe(2)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        return frame.f_code.co_filename.startswith(self._source)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _UnusedModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _rounded_columns(weights: torch.Tensor, kind: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return INT8 weights [in, out], in the plain order as above, and scales [out]."""
    scales = weights.float().abs().amax(dim=0) / 127
    return (weights / scales).round().clamp(-128, 127).to(torch.int8), scales.to(weights.dtype)


def install(source: Path) -> None:
    """Make upstream's package importable."""
    sys.meta_path[:] = [_Finder(source, is_last=False), *sys.meta_path, _Finder(source, is_last=True)]
    sys.modules["tensorrt"] = importlib.import_module("tests.upstream_builder.tensorrt")
    process = types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(rss=0), children=lambda **_: [])
    numbers: Any = types.ModuleType("psutil")
    numbers.__spec__, numbers.Process = importlib.machinery.ModuleSpec("psutil", None), lambda: process
    sys.modules["psutil"] = numbers
    words: Any = types.ModuleType("strenum")
    words.__getattr__ = _word
    sys.modules["strenum"] = words
    for name in _HOLLOW:
        package = types.ModuleType(name)
        package.__path__ = [str(source / name.replace(".", "/"))]
        sys.modules[name] = package
    cuda: Any = torch.cuda
    cuda.device_count = lambda: 1
    cuda.set_device = lambda device: None
    cuda.get_device_properties = lambda device: types.SimpleNamespace(major=9, minor=0, name="H100")
    cuda.get_device_capability = lambda *_: (9, 0)
    operations: Any = torch.ops.trtllm
    # A GPU's order of weights; the stand-in of the plugin reads them in the plain one.
    operations.preprocess_weights_for_mixed_gemm = lambda weights, *_: weights
    operations.symmetric_quantize_last_axis_of_batched_matrix = _rounded_columns
    operations.pack_int8_tensor_to_packed_int4 = lambda weights: weights[..., ::2]
    operations.unpack_int4_packed_tensor_to_int8 = lambda weights: weights.repeat_interleave(2, dim=-1)


def main(arguments: list[str]) -> int:
    """Run each command of a JSON file in a child of its own, and write the logits."""
    source, example, commands = arguments
    install(Path(source))
    standing_in: Any = sys.modules["tensorrt"]
    ids = torch.from_numpy(np.load(example))
    places = torch.arange(len(ids))
    # As a batch of as many sequences as tokens, so that each token's logits are gathered.
    standing_in.EXAMPLE |= {"input_ids": ids, "position_ids": places, "last_token_ids": places + 1}
    build: Any = importlib.import_module("tensorrt_llm.commands.build")
    build.mpi_world_size = lambda: 1
    codes = []
    for options in json.loads(Path(commands).read_text(encoding="utf-8")):
        child = os.fork()  # importing upstream takes longer than a build
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            continue
        sys.argv = ["trtllm-build", *options]
        build.main()
        outputs = {tensor.name: tensor.value.numpy() for tensor in standing_in.NETWORKS[0].outputs}
        np.save(Path(options[options.index("--output_dir") + 1]) / "logits.npy", outputs["logits"])
        return 0
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
