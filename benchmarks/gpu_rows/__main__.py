"""Prove or refute that rows have the same bits in every batch on a GPU: ``python -m benchmarks.gpu_rows``.

On random weights of 8B and 1B shapes it counts rows whose bits depend on the rows beside them, and times what
makes them independent, beside a free choice of kernels. A Hopper GPU takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import conditions
from pipelines.deploy.gpus import INSTEAD, Gpu, visible_gpus
from pipelines.errors import ServerStartError
from pipelines.program import run_program

_NEEDED_SM, _NEEDED_MIB = 90, 75_000


def checked_gpu() -> Gpu:
    """Return the first GPU.

    Raises:
        ServerStartError: There is none, or it is too small or too old.
    """
    gpu = visible_gpus()[0]
    if gpu.sm < _NEEDED_SM or gpu.memory_mib < _NEEDED_MIB:
        raise ServerStartError(
            "this benchmark cannot use the GPU",
            values=f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_mib:,} MiB",
            limit=f"compute capability {_NEEDED_SM / 10} or more, and {_NEEDED_MIB:,} MiB",
            remedy=INSTEAD,
        )
    return gpu


def _measure(path: Path, command_line: list[str]) -> int:
    about = conditions("benchmarks.gpu_rows", command_line, gpu=vars(checked_gpu()))
    import torch
    import triton

    from benchmarks.gpu_rows.decoder import FORMATS, SHAPES, Cache, Decoder
    from benchmarks.gpu_rows.measure import CONTEXTS, Product, Steps, bandwidth, measured_attention

    about["packages"] = {"torch": torch.__version__, "triton": triton.__version__}
    speed = bandwidth()
    document: dict[str, Any] = {"conditions": about, "bytes_per_s": speed, "products": {}, "decoders": {}}

    def write(done: str) -> None:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(done, flush=True)

    write(f"bandwidth: {speed / 1e12:.2f} TB/s")
    products: dict[str, dict[str, Product]] = {}
    for model, shape in SHAPES.items():  # the decoder has the last shape
        for name, form in FORMATS.items():
            sizes = {**shape.linears(), "head": (shape.vocab, shape.hidden)}
            products[name] = {each: Product(*size, form) for each, size in sizes.items()}
            found = {each: one.measured() for each, one in products[name].items()}
            for one in products[name].values():
                one.copies.clear()
            document["products"][f"{model} {name}"] = found
            write(f"products of {model} {name}")
    document["attention"] = {context: measured_attention(shape, context) for context in CONTEXTS}
    write("attention")
    splits = {context: found["best"] for context, found in document["attention"].items()}
    cache = Cache(shape, 1 + max(context // 64 * max(counts) for context, counts in CONTEXTS.items()))
    for name in ("bf16", "fp8"):
        decoder = Decoder(shape, FORMATS[name], cache, max(CONTEXTS))
        ways = {**products[name], "head": products["bf16"]["head"]}
        document["decoders"][name] = Steps(decoder, ways, splits).measured(speed)
        write(f"decoder {name}")
        del decoder
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_rows", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("gpu-rows.json"), help="result file (%(default)s)"
    )
    options = parser.parse_args(arguments)
    return run_program(lambda: _measure(options.output, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
