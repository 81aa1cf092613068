"""Store a head with projections of four bits, as compressed-tensors does (``pack-quantized``, symmetric)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from build.checkpoints.tensor_file import Float32Array, Tensor, read_tensors, write_tensors
from pipelines.atomic_file import write_whole

_GROUP_SIZE = 32  # inputs that share a scale
_STEPS = (6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0)  # tried: steps up to the largest number of a group
_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": _GROUP_SIZE,
            },
        }
    },
}


def packed(values: Float32Array) -> dict[str, Tensor]:
    """Round each group of inputs to -8..7 times the scale whose squared error is least.

    Args:
        values: [out, in]; ``in`` is a multiple of 32.

    Returns:
        ``weight_packed`` I32 [out, in / 8], the first input in the lowest bits; ``weight_scale`` F16 [out,
        in / 32]; ``weight_shape``.
    """
    groups = values.reshape(len(values), -1, _GROUP_SIZE)
    largest = np.abs(groups).max(axis=2)
    scale, codes = np.zeros_like(largest), np.zeros(groups.shape, np.int8)
    least = np.full_like(largest, np.inf)
    for steps in _STEPS:
        tried = np.maximum(largest / np.float32(steps), np.float32(1e-7)).astype(np.float16)[..., np.newaxis]
        rounded = np.rint(groups / tried.astype(np.float32)).clip(-8, 7)
        error = np.square(rounded * tried.astype(np.float32) - groups).sum(axis=2)
        is_closer = error < least
        least[is_closer], scale[is_closer] = error[is_closer], tried[is_closer, 0]
        codes[is_closer] = rounded[is_closer]
    nibbles = (codes.reshape(len(values), -1, 2) + 8).astype(np.uint8)
    words = np.ascontiguousarray(nibbles[..., 0] | nibbles[..., 1] << 4).view("<i4")
    shape = np.array(values.shape)
    return {
        "weight_packed": Tensor("I32", words.shape, words),
        "weight_scale": Tensor.from_float32(scale, "F16"),
        "weight_shape": Tensor("I64", shape.shape, shape),
    }


def shrink(head: Path, output: Path) -> None:
    """Write the head of one folder to another, with its matrices in four bits."""
    stored = {}
    for name, tensor in read_tensors(head / "model.safetensors").items():
        if len(tensor.shape) == 1:
            stored[name] = tensor
            continue
        module = name.removesuffix("weight")
        stored |= {module + part: each for part, each in packed(tensor.to_float32()).items()}
    output.mkdir(parents=True, exist_ok=True)
    write_tensors(output / "model.safetensors", stored, {"format": "pt"})
    config = json.loads((head / "config.json").read_text("utf-8")) | {"quantization_config": _QUANTIZATION}
    write_whole(output / "config.json", json.dumps(config, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_head.shrink", description=__doc__)
    parser.add_argument("head", type=Path, help="folder of a trained head")
    parser.add_argument("output", type=Path, help="folder of the smaller one")
    options = parser.parse_args(arguments)
    shrink(options.head, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
