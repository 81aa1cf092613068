"""Measure the memory of a server with a random pair of about 450 and 75 million parameters.

``python -m benchmarks.server_memory`` writes two checkpoints with random weights, builds and serves them as
``draftproof try`` does, in INT8 and in float32, sends prompts to both models, and reads the memory of every
process of the server. Step times are not calibrated, as they do not change the memory. The last line of
standard output is JSON. Exit codes: 0 success; 1 the server failed; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import Tensor, write_tensors
from build.engines import build_engines
from build.own_pair import write_recipe
from build.recipe import REPOSITORY_ROOT, load_recipe
from build.rendering.template_values import calibration_file
from build.repository import render_recipe
from pipelines.available_resources import available_bytes
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.draft_length.calibration import Calibration, EngineCosts
from pipelines.speculation.draft_length.survival import NUM_CLASSES

TOKENIZER = REPOSITORY_ROOT / "engines" / "demo_pair" / "target" / "tokenizer.json"
VOCAB_SIZE, HEAD_SIZE = 32000, 64
MAX_SEQ_LEN = 1024
PROMPTS = tuple("def function(argument):\n    return argument\n" * repeats for repeats in (1, 4, 12, 40))


@dataclass(frozen=True)
class Shape:
    """Sizes of a random Llama with tied embeddings."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int


SHAPES = {"target": Shape(16, 1536, 4096, 24, 8), "draft": Shape(8, 768, 2048, 12, 4)}


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of one process, megabytes.

    Attributes:
        name: Model of the process, or its program.
        rss: Resident memory.
        pss: The same, with shared pages divided by the number of processes that share them.
        anonymous: Part of ``rss`` that no file holds.
    """

    name: str
    rss: float
    pss: float
    anonymous: float


def write_checkpoint(directory: Path, shape: Shape, seed: int) -> None:
    """Write a Hugging Face directory with random BF16 weights."""
    rng = np.random.default_rng(seed)

    def random(*size: int) -> Tensor:
        values = rng.standard_normal(size, np.float32)
        return Tensor.from_float32(values * np.float32(size[-1] ** -0.5), "BF16")

    hidden, kv_size = shape.hidden_size, shape.num_kv_heads * HEAD_SIZE
    ones = Tensor.from_float32(np.ones(hidden, np.float32), "BF16")
    tensors = {"model.embed_tokens.weight": random(VOCAB_SIZE, hidden), "model.norm.weight": ones}
    for index in range(shape.num_layers):
        layer = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = ones
        for name, outputs in (("q", hidden), ("k", kv_size), ("v", kv_size), ("o", hidden)):
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = random(outputs, hidden)
        for name in ("gate", "up"):
            tensors[f"{layer}.mlp.{name}_proj.weight"] = random(shape.intermediate_size, hidden)
        tensors[f"{layer}.mlp.down_proj.weight"] = random(hidden, shape.intermediate_size)
    directory.mkdir(parents=True)
    write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copyfile(TOKENIZER, directory / "tokenizer.json")


def process_memory(pid: int) -> Iterator[ProcessMemory]:
    """Read the memory of a process and of its descendants, except for those that end meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text("ascii").split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    rss, pss, anonymous = (
        int(found[1]) * 1024 / 1e6
        for name in ("Rss", "Pss", "Anonymous")
        if (found := re.search(rf"^{name}: +(\d+) kB$", rollup, re.MULTILINE))
    )
    model = Path(command[1]).parents[1].name if command[0].endswith("python_backend_stub") else ""
    yield ProcessMemory(model or Path(command[0]).name, rss, pss, anonymous)
    for child in children:
        yield from process_memory(int(child))


def _write_calibration(path: Path) -> None:
    costs = EngineCosts((2, 64), (0.01, 0.05), 1e-8, 1.0, 0.001)
    shares = (1 / NUM_CLASSES,) * NUM_CLASSES
    Calibration(costs, costs, (0.5,) * NUM_CLASSES, shares, 0.0).write(path)


def measure(quantization: str, folder: Path) -> dict[str, Any]:
    """Build and serve a pair, send prompts, and read the memory.

    Args:
        quantization: Quantization of both engines.
        folder: Empty folder for everything.
    """
    for seed, (role, shape) in enumerate(SHAPES.items()):
        write_checkpoint(folder / role, shape, seed)
    path = folder / "pair.yaml"
    target, draft = (str(folder / role) for role in ("target", "draft"))
    write_recipe(target, draft, path, quantization, MAX_SEQ_LEN, available_bytes())
    recipe = load_recipe(path)
    built = build_engines(recipe, folder / "engines", print)
    draft_engine, target_engine = Path(built["draft"]), Path(built["target"])
    _write_calibration(calibration_file(draft_engine, target_engine))
    directory = render_recipe(recipe, draft_engine, target_engine, folder / "run").parent
    with Server.start(directory, Ports.free()) as server:
        ready_s = server.wait_ready()
        loaded = sum(process.rss for process in process_memory(server.process.pid))
        with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}") as client:
            for model in ("generate", "generate_target"):
                for prompt in PROMPTS:
                    client.stream(CompletionRequest(prompt, max_tokens=32), model).result()
        processes = list(process_memory(server.process.pid))
        text = (directory / "model_repository" / "speculative" / "config.pbtxt").read_text(encoding="utf-8")
    num_blocks = {
        role: int(re.findall(rf'"{role}_num_kv_blocks" value: {{ string_value: "(\d+)"', text)[0])
        for role in SHAPES
    }
    for process in processes:
        print(f"{process.name:<28} {process.rss:8.0f} MB RSS {process.anonymous:8.0f} MB anonymous")
    return {
        "quantization": quantization,
        "engine_mb": {role: (Path(built[role]) / "engine.bin").stat().st_size / 1e6 for role in SHAPES},
        "cache_mb": {
            role: num_blocks[role] * 2 * 32 * shape.num_layers * shape.num_kv_heads * HEAD_SIZE * 4 / 1e6
            for role, shape in SHAPES.items()
        },
        "num_kv_blocks": num_blocks,
        "ready_s": ready_s,
        "rss_loaded_mb": loaded,
        "rss_mb": sum(process.rss for process in processes),
        "pss_mb": sum(process.pss for process in processes),
        "processes": [asdict(process) for process in processes],
        "engines": engine_conditions({"draft": draft_engine, "target": target_engine}),
    }


def _measure_and_print(quantizations: Sequence[str], command_line: list[str]) -> int:
    servers = []
    for quantization in quantizations:
        with tempfile.TemporaryDirectory(prefix="memory-", dir=REPOSITORY_ROOT / ".run") as folder:
            servers.append(measure(quantization, Path(folder)))
    print(
        json.dumps({"servers": servers, "conditions": conditions("benchmarks.server_memory", command_line)})
    )
    return EXIT_PASS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_memory", description=__doc__)
    parser.add_argument(
        "--quantization", nargs="+", choices=("int8", "int4", "none"), default=("int8", "none")
    )
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    (REPOSITORY_ROOT / ".run").mkdir(exist_ok=True)
    return run_program(lambda: _measure_and_print(options.quantization, command_line))


if __name__ == "__main__":
    sys.exit(main())
