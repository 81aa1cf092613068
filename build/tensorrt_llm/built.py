"""Whether an engine directory of TensorRT-LLM holds what the recipe asks for.

The builder changes what it is asked for with a warning at most, so its ``config.json`` is compared with
the recipe field by field, after a build and before a server gets the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from build.manifest import read_manifest
from build.model_config import ModelConfig, parse_tensorrt_llm, read_json
from build.tensorrt_llm.command import LOGITS_DTYPE
from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.rules import Broken, Finding
from pipelines.errors import CheckpointError

_RULE = "built-as-asked"
_SOURCE = "tensorrt_llm/builder.py EngineConfig, Engine.save @008b2b8d"
# SpeculativeDecodingMode, an IntFlag: a config.json of 0.13 stores 1 for a plain engine; that 1.2.1 stores
# numbers too is assumed, so the name is taken as well.
_MODES = {"draft": ("1", "none"), "target": ("2", "draft_tokens_external")}


def _expected(pair: Pair, side: Side) -> dict[str, tuple[Any, ...]]:
    """Allowed values of each field of ``build_config``, dots leading inside."""
    serving, section = pair.recipe.serving, side.engine.tensorrt_llm
    fields: dict[str, tuple[Any, ...]] = {
        "max_batch_size": (serving.max_batch_size,),
        "max_seq_len": (serving.max_seq_len + pair.max_draft_len(side),),
        "max_num_tokens": (pair.max_num_tokens,),
        "max_beam_width": (1,),
        "max_draft_len": (pair.max_draft_len(side),),
        "speculative_decoding_mode": _MODES[side.role],
        "kv_cache_type": ("paged",),
        "gather_context_logits": (False,),
        "plugin_config.use_paged_context_fmha": (True,),
        "plugin_config.tokens_per_block": (section.tokens_per_block,),
        "plugin_config.multiple_profiles": (section.multiple_profiles,),
        "plugin_config.reduce_fusion": (section.reduce_fusion,),
    }
    if section.low_latency_gemm:
        fields["plugin_config.low_latency_gemm_plugin"] = ("fp8",)
    if section.gemm_swiglu:
        fields["plugin_config.gemm_swiglu_plugin"] = ("fp8",)
    return fields


def _differences(pair: Pair, side: Side, config: dict[str, Any], network: ModelConfig) -> Iterator[str]:
    version = str(config.get("version"))
    asked = pair.recipe.tensorrt_llm.version
    if version.partition("+")[0] != asked:
        yield f"version {version}, asked for {asked}"
    for name in ("vocab_size", "quant_algo", "kv_cache_quant_algo", "tp_size", "pp_size"):
        found, wanted = getattr(network, name), getattr(side.asked, name)
        if found != wanted:
            yield f"{name} {found}, asked for {wanted}"
    if network.logits_dtype != LOGITS_DTYPE:
        yield f"logits_dtype {network.logits_dtype}, asked for {LOGITS_DTYPE}"
    for path, allowed in _expected(pair, side).items():
        value: Any = config["build_config"]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        plain = str(value).lower() if isinstance(allowed[0], str) else value
        if plain not in allowed:
            yield f"{path} {value}, asked for {allowed[0]}"


def differences(pair: Pair, side: Side, directory: Path) -> list[str]:
    """How an engine directory differs from what the recipe asks for; empty if it does not."""
    try:
        config = read_json(directory / "config.json")
        network = parse_tensorrt_llm(config.get("pretrained_config") or {}, directory / "config.json")
    except CheckpointError as error:
        return [f"{error.what}: {error.values}"]
    if not isinstance(config.get("build_config"), dict):
        return ["config.json has no build_config"]
    found = list(_differences(pair, side, config, network))
    gpu = (read_manifest(directory) or {}).get("gpu")  # NVIDIA's file does not say it; ours comes after it
    if gpu not in (None, pair.recipe.tensorrt_llm.gpu):
        found.append(f"gpu {gpu}, asked for {pair.recipe.tensorrt_llm.gpu}")
    for rank in range(side.asked.world_size):
        engine = directory / f"rank{rank}.engine"
        if not engine.is_file() or engine.stat().st_size == 0:
            found.append(f"{engine.name} is {'empty' if engine.is_file() else 'missing'}")
    return found


def check_built(pair: Pair, directories: dict[str, Path]) -> list[Finding]:
    """Compare engines that exist with the recipe.

    Args:
        pair: What is asked for.
        directories: Engine directory by role; roles without one are left out.
    """
    found = []
    for side in pair.sides:
        if side.role in directories:
            directory = directories[side.role]
            different = differences(pair, side, directory)
            if different:
                broken = Broken(
                    side.role,
                    f"{directory} is not the engine that the recipe asks for",
                    "; ".join(different),
                    "config.json and rank*.engine as asked",
                    f"run make engines RECIPE={pair.recipe.name} RUNTIME=tensorrt_llm, or correct the recipe",
                )
                found.append(Finding(_RULE, _SOURCE, broken))
    return found
