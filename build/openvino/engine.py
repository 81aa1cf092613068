"""Write an engine directory: OpenVINO IR, tokenizer, ``engine.json`` and manifest.

The IR holds graph and weights, not compiled kernels, because this version of OpenVINO cannot load compiled
blobs of networks with paged attention. Compiling takes well under a second when a server starts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openvino as ov

from build.checkpoints.engine_texts import write_engine_texts
from build.checkpoints.tensor_file import Float32Array
from build.files import new_engine, write_manifest
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig
from build.openvino.decoder_graph import build_graph
from build.openvino.operations import openvino_product
from build.openvino.own_operators import KV_BLOCK_SIZE, OwnAttention, own_product
from build.openvino.own_recurrence import recurrence_entries
from build.operators.library import compiled_library
from build.recipe import EngineRecipe
from pipelines.errors import EngineBuildError
from pipelines.manifest import sha256_file

FORMAT_VERSION = 3
OPERATOR_LIBRARY = "operators.so"
KV_PROPERTIES = {
    "float32": {"KV_CACHE_PRECISION": "f32"},
    "float16": {"KV_CACHE_PRECISION": "f16"},
    # By default a key's scale is that of a channel in a whole block: a rejected draft token would change the
    # keys of accepted ones (docs/decisions/engines.md).
    "int8": {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"},
}
# With integer weights, activations are rounded to int8 in groups of at most this many features. Without it,
# a step of several tokens takes three times as long; 128 was the fastest group size in our tests.
DYNAMIC_QUANTIZATION_GROUP_SIZE = 128


@dataclass(frozen=True)
class EngineSettings:
    """Settings that an engine directory records in addition to the network.

    Attributes:
        role: ``draft`` or ``target``.
        recipe: Name of the recipe.
        engine: Section of the recipe, with threads and products chosen. Results are bitwise equal only for
            the same number of threads.
        end_ids: Tokens that end a text.
        fingerprint: Hash that identifies the engine's content, hexadecimal.
        origin: Further entries of the manifest.
        texts: Content of further files by name, such as ``chat.json``.
    """

    role: str
    recipe: str
    engine: EngineRecipe
    end_ids: tuple[int, ...]
    fingerprint: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


class _Meter:
    """Count parameters and bytes of the layers as they are added to the graph."""

    def __init__(self, network: Network) -> None:
        tied = network.config.share_embedding_table
        self._experts = network.config.experts
        self.parameters = network.embedding.size + network.final_norm.size
        self.parameters += 0 if tied else network.lm_head.weight.size
        self.step_bytes: float = network.lm_head.bytes_per_step + network.final_norm.nbytes
        self.rounding_group = 0
        self._see(network.lm_head)
        if network.fusion is not None:
            fusion = network.fusion
            norms = (fusion.hidden_norm, fusion.embedding_norm, fusion.features_norm)
            self._count((norm for norm in norms if norm is not None), (fusion.fc,))

    def count(self, layer: Layer) -> None:
        others = () if layer.recurrence is None else vars(layer.recurrence).values()
        router = () if layer.router is None else (layer.router,)
        self._count((*layer.norms(), *others), (*layer.qkv, layer.dense, *router, *layer.shared))
        share = 1.0 if layer.router is None or self._experts is None else self._experts.chosen_share
        self._count((), layer.mlp(), share)

    def _count(
        self, norms: Iterable[Float32Array], linears: Iterable[Linear], share_read: float = 1.0
    ) -> None:
        for norm in norms:
            self.parameters += norm.size
            self.step_bytes += norm.nbytes
        for linear in linears:
            self.parameters += linear.weight.size
            self.step_bytes += share_read * linear.bytes_per_step
            self._see(linear)

    def _see(self, linear: Linear) -> None:
        """Find the largest group of activations that the plugin can round: none is larger than a weight's."""
        if linear.is_integer and linear.scale is not None:
            columns, groups = linear.weight.shape[1], linear.scale.shape[1]
            group = columns // groups if groups > 1 else DYNAMIC_QUANTIZATION_GROUP_SIZE
            self.rounding_group = min(self.rounding_group or DYNAMIC_QUANTIZATION_GROUP_SIZE, group)


def _compile_properties(engine: EngineRecipe, config: NetworkConfig, rounding_group: int) -> dict[str, str]:
    # Like a GPU, do not round activations unless the checkpoint is made for it.
    of_checkpoint = engine.rounding == "checkpoint" and config.rounds_activations
    group = rounding_group if engine.rounding in ("int8", "int4") or of_checkpoint else 0
    return {
        "INFERENCE_PRECISION_HINT": "f32",
        **KV_PROPERTIES[engine.kv_cache.dtype],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "ENABLE_CPU_PINNING": "YES" if engine.thread_placement == "pinned" else "NO",
    }


def engine_description(
    network: Network, settings: EngineSettings, linear: str, meter: _Meter
) -> dict[str, Any]:
    """Return the content of ``engine.json``."""
    config, engine = network.config, settings.engine
    return {
        "format_version": FORMAT_VERSION,
        "role": settings.role,
        "recipe": settings.recipe,
        "openvino_version": openvino_version(),
        "architecture": config.architecture,
        "vocab_size": network.num_logits,
        # Those that keep keys and values.
        "num_layers": config.num_hidden_layers - config.num_recurrent_layers,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_size": config.head_size,
        "max_position_embeddings": config.max_position_embeddings,
        "end_ids": list(settings.end_ids),
        "kv_block_size": KV_BLOCK_SIZE,
        "kv_cache_dtype": engine.kv_cache.dtype,
        "attention": engine.attention,
        "linear": linear,
        "num_threads": engine.num_threads,
        "compile_properties": _compile_properties(engine, config, meter.rounding_group),
        "num_parameters": int(meter.parameters),
        "weight_bytes_per_step": int(meter.step_bytes),
        "quantization": engine.quantization,
        **({} if config.mask_token_id is None else {"mask_token_id": config.mask_token_id}),
        **_feature_entries(config),
        **recurrence_entries(config),
    }


def _feature_entries(config: NetworkConfig) -> dict[str, Any]:
    """Return what a target and its trained head say of the features that pass between them."""
    if not config.feature_layers:
        return {}
    return {
        "feature_layers": list(config.feature_layers),
        "hidden_size": config.hidden_size,
        **({"reads_features": True} if config.reads_features else {}),
    }


def openvino_version() -> str:
    """Return the version of the installed openvino without build number, such as ``2026.4.1``."""
    return str(ov.__version__).split("-", 1)[0]


def _own_operations(graph: Any) -> set[str]:
    nodes = (node for node in graph.get_ops() if node.get_type_info().version_id == "draftproof")
    return {node.get_type_name() for node in nodes}


def write_engine(
    directory: Path, network: Network, tokenizer: Path, settings: EngineSettings, token_map: str | None = None
) -> None:
    """Compile a network and write its engine directory atomically.

    Args:
        directory: Replaced if it exists.
        network: Network with quantization already applied.
        tokenizer: Path of ``tokenizer.json``, which is copied.
        settings: What to record.
        token_map: Content of ``token_map.json``, if the network reads the tokens of another tokenizer.

    Raises:
        EngineBuildError: OpenVINO rejected the network, there is no compiler for operators of our own, or the
            disk is full.
    """
    meter, engine = _Meter(network), settings.engine
    is_own = engine.attention == "draftproof"
    attention = OwnAttention(network.config, engine.kv_cache.dtype) if is_own else None
    product = own_product if engine.linear == "draftproof" else openvino_product

    def metered(index: int) -> Layer:
        layer = network.layer(index)
        meter.count(layer)
        return layer

    try:
        with new_engine(directory) as (work, _):
            graph = build_graph(replace(network, layer=metered), attention, product)
            # compress_to_fp16 would round scales and norms.
            ov.save_model(graph, work / "engine.xml", compress_to_fp16=False)
            shutil.copyfile(tokenizer, work / "tokenizer.json")
            own_operations = _own_operations(graph)
            if own_operations:
                (work / OPERATOR_LIBRARY).write_bytes(compiled_library())
            write_engine_texts(work, settings.texts)
            # Weights in floating point are OpenVINO's, whatever the recipe says; experts never are.
            linear = "draftproof" if own_operations & {"Linear", "ExpertLinear"} else "openvino"
            description = json.dumps(engine_description(network, settings, linear, meter), indent=2)
            (work / "engine.json").write_text(description + "\n", encoding="utf-8")
            if token_map is not None:
                (work / "token_map.json").write_text(token_map, encoding="utf-8")
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
            f"the {settings.role} engine of recipe {settings.recipe} could not be built: "
            f"{type(error).__name__}: {error}; it needs openvino {openvino_version()}, and "
            f"{meter.step_bytes:.0f} free bytes in {directory.parent}",
            "check the disk, and that openvino has the pinned version",
        ) from error
