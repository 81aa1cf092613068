"""Writes an engine directory: OpenVINO IR, tokenizer, ``engine.json`` and manifest.

The IR holds graph and weights, not compiled kernels (compiled blobs of paged-attention networks do
not load again in this OpenVINO); compiling takes well under a second when a server starts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openvino as ov

from build.llama_graph import build_graph
from build.manifest import sha256_file, write_manifest
from build.network import Layer, Network
from build.whole import whole_directory
from pipelines.errors import EngineBuildError

FORMAT_VERSION = 2
KV_BLOCK_SIZE = 32  # tokens; what the CPU plugin's paged attention works in
KV_PRECISION = {"float32": "f32", "float16": "f16"}
# Activations are rounded to int8 in groups of this many features where weights are int8. Without it
# a step of several tokens costs three times as much; 128 was the fastest of the group sizes tried.
DYNAMIC_QUANTIZATION_GROUP_SIZE = 128


@dataclass(frozen=True)
class EngineSettings:
    """What an engine directory records beside the network itself.

    Attributes:
        role: ``draft`` or ``target``.
        recipe: Name of the recipe.
        quantization: As in the recipe: ``none``, ``int8`` or ``checkpoint``.
        kv_cache_dtype: ``float32`` or ``float16``.
        num_threads: Threads that the engine computes with; results are bitwise equal only within one count.
        thread_placement: ``pinned`` to processors or ``free``.
        end_ids: Tokens that end a text.
        fingerprint: Identity of the engine's content, hexadecimal.
        origin: Further entries of the manifest.
        dynamic_quantization: Whether int8 projections round their activations too.
    """

    role: str
    recipe: str
    quantization: str
    kv_cache_dtype: str
    num_threads: int
    end_ids: tuple[int, ...]
    fingerprint: str
    origin: Mapping[str, Any]
    dynamic_quantization: bool = True
    thread_placement: str = "pinned"


class _Meter:
    """Counts the weights while the layers pass by on their way into the graph."""

    def __init__(self, network: Network) -> None:
        tied = network.config.share_embedding_table
        self.parameters = network.embedding.data.size + network.final_norm.size
        self.parameters += 0 if tied else network.lm_head.weight.data.size
        self.step_bytes = network.lm_head.bytes_per_step + network.final_norm.nbytes
        self.has_int8 = network.lm_head.weight.dtype == "I8"

    def count(self, layer: Layer) -> None:
        norms = (layer.input_norm, layer.post_norm)
        self.parameters += sum(norm.size for norm in norms)
        self.step_bytes += sum(norm.nbytes for norm in norms)
        for linear in layer.linears():
            self.parameters += linear.weight.data.size
            self.step_bytes += linear.bytes_per_step
            self.has_int8 = self.has_int8 or linear.weight.dtype == "I8"


def _compile_properties(settings: EngineSettings, has_int8: bool) -> dict[str, str]:
    group = DYNAMIC_QUANTIZATION_GROUP_SIZE if has_int8 and settings.dynamic_quantization else 0
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": KV_PRECISION[settings.kv_cache_dtype],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "YES" if settings.thread_placement == "pinned" else "NO",
    }


def engine_description(network: Network, settings: EngineSettings, meter: _Meter) -> dict[str, Any]:
    """The content of ``engine.json``."""
    config = network.config
    return {
        "format_version": FORMAT_VERSION,
        "role": settings.role,
        "recipe": settings.recipe,
        "openvino_version": openvino_version(),
        "architecture": config.architecture,
        "vocab_size": config.vocab_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_size": config.head_size,
        "max_position_embeddings": config.max_position_embeddings,
        "end_ids": list(settings.end_ids),
        "kv_block_size": KV_BLOCK_SIZE,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "num_threads": settings.num_threads,
        "compile_properties": _compile_properties(settings, meter.has_int8),
        "num_parameters": int(meter.parameters),
        "weight_bytes_per_step": int(meter.step_bytes),
        "quantization": settings.quantization,
    }


def openvino_version() -> str:
    """Version of the installed openvino, without build number: ``2026.4.1``."""
    return str(ov.__version__).split("-", 1)[0]


def write_engine(directory: Path, network: Network, tokenizer: Path, settings: EngineSettings) -> None:
    """Compile a network into an engine directory, whole or not at all.

    Args:
        directory: Must lie on a writable file system; replaced if it exists.
        network: Weights in the form in which they shall run.
        tokenizer: ``tokenizer.json``, copied in.
        settings: What to record.

    Raises:
        EngineBuildError: OpenVINO refused the network, or the disk is full.
    """
    meter = _Meter(network)

    def metered(index: int) -> Layer:
        layer = network.layer(index)
        meter.count(layer)
        return layer

    try:
        with whole_directory(directory) as work:
            graph = build_graph(replace(network, layer=metered))
            # compress_to_fp16 would round the scales and norms.
            ov.save_model(graph, work / "engine.xml", compress_to_fp16=False)
            shutil.copyfile(tokenizer, work / "tokenizer.json")
            description = json.dumps(engine_description(network, settings, meter), indent=2)
            (work / "engine.json").write_text(description + "\n", encoding="utf-8")
            write_manifest(
                work,
                {
                    "fingerprint": settings.fingerprint,
                    "end_ids": list(settings.end_ids),
                    "openvino_version": openvino_version(),
                    "tokenizer_sha256": sha256_file(tokenizer),
                    **settings.origin,
                },
            )
    except (OSError, RuntimeError) as error:
        raise EngineBuildError(
            f"the {settings.role} engine of recipe {settings.recipe} could not be built",
            values=f"{type(error).__name__}: {error}",
            limit=f"openvino {openvino_version()}, room for {meter.step_bytes} bytes in {directory.parent}",
            remedy="check the disk and that openvino is the pinned version",
        ) from error
