"""Check a pair against all rules, and built engines against the recipe.

``trtllm-build`` sometimes overrides what it is asked for, at most with a warning. The ``config.json`` of an
engine is therefore compared with the recipe field by field, before a server may load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.settings import read_json
from build.tensorrt_llm.command import GATHERS_LOGITS, LOGITS_DTYPE, TOKENS_PER_BLOCK
from build.tensorrt_llm.model_config import ModelConfig, parse_tensorrt_llm
from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.rules.networks import PRECISION_RULES, VERSION_RULES, VOCABULARY_RULES
from build.tensorrt_llm.rules.placement import PLACEMENT_RULES
from build.tensorrt_llm.rules.rule import Finding, Violation, findings
from pipelines.errors import CheckpointError, IncompatiblePairError
from pipelines.manifest import read_manifest

RULES = (*VERSION_RULES, *VOCABULARY_RULES, *PRECISION_RULES, *PLACEMENT_RULES)


def check_pair(pair: Pair, built: Mapping[str, Path] | None = None) -> list[Finding]:
    """Return all violations of the rules, and differences between existing engines and the recipe."""
    return [*findings(pair, RULES), *check_built(pair, dict(built or {}))]


def refuse(pair: Pair, found: list[Finding]) -> IncompatiblePairError:
    """Return one error for all findings, which have been printed already."""
    return IncompatiblePairError(
        f"recipe {pair.recipe.name} does not pass preflight: "
        + "; ".join(f"{one.rule} ({one.violation.role}): {one.violation.message}" for one in found),
        "; ".join(dict.fromkeys(one.violation.remedy for one in found)),
    )


_RULE = "built-as-asked"
_SOURCE = "tensorrt_llm/builder.py EngineConfig, Engine.save @008b2b8d"
_MODES = {"draft": 1, "target": 2}  # SpeculativeDecodingMode is an IntFlag: NONE, DRAFT_TOKENS_EXTERNAL


def _expected(pair: Pair, side: Side) -> dict[str, Any]:
    """Return the expected values of the fields of ``build_config``; a dot leads into a nested object."""
    serving = pair.recipe.serving
    return {
        "max_batch_size": serving.max_batch_size,
        "max_seq_len": serving.max_seq_len + pair.max_draft_len(side),
        "max_num_tokens": pair.max_num_tokens,
        "max_beam_width": 1,
        "max_draft_len": pair.max_draft_len(side),
        "speculative_decoding_mode": _MODES[side.role],
        "kv_cache_type": "paged",
        "gather_context_logits": False,
        "gather_generation_logits": GATHERS_LOGITS[side.role],
        "plugin_config.use_paged_context_fmha": True,
        "plugin_config.tokens_per_block": TOKENS_PER_BLOCK,
        "plugin_config.multiple_profiles": False,
        "plugin_config.reduce_fusion": side.engine.tensorrt_llm.reduce_fusion,
    }


def _differences(pair: Pair, side: Side, config: dict[str, Any], network: ModelConfig) -> Iterator[str]:
    version = str(config.get("version"))
    requested = pair.recipe.tensorrt_llm.version
    if version.partition("+")[0] != requested:
        yield f"version {version}, expected {requested}"
    for name in ("vocab_size", "quant_algo", "kv_cache_quant_algo", "tp_size", "pp_size"):
        found, wanted = getattr(network, name), getattr(side.requested, name)
        if found != wanted:
            yield f"{name} {found}, expected {wanted}"
    if network.logits_dtype != LOGITS_DTYPE:
        yield f"logits_dtype {network.logits_dtype}, expected {LOGITS_DTYPE}"
    for path, wanted in _expected(pair, side).items():
        value: Any = config["build_config"]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        # The names of an enumeration are in either case.
        if (value.lower() if isinstance(value, str) else value) != wanted:
            yield f"{path} {value}, expected {wanted}"


def differences(pair: Pair, side: Side, directory: Path) -> list[str]:
    """Return how an engine differs from what the recipe asks for; empty if it does not."""
    try:
        config = read_json(directory / "config.json")
        network = parse_tensorrt_llm(config.get("pretrained_config") or {}, directory / "config.json")
    except CheckpointError as error:
        return [error.message]
    if not isinstance(config.get("build_config"), dict):
        return ["config.json has no build_config"]
    found = list(_differences(pair, side, config, network))
    gpu = (read_manifest(directory) or {}).get("gpu")  # only our manifest, written last, has it
    if gpu not in (None, pair.recipe.tensorrt_llm.gpu):
        found.append(f"gpu {gpu}, expected {pair.recipe.tensorrt_llm.gpu}")
    for rank in range(side.requested.world_size):
        engine = directory / f"rank{rank}.engine"
        if not engine.is_file() or engine.stat().st_size == 0:
            found.append(f"{engine.name} is {'empty' if engine.is_file() else 'missing'}")
    return found


def check_built(pair: Pair, directories: dict[str, Path]) -> list[Finding]:
    """Compare existing engines with the recipe.

    Args:
        pair: The pair that the recipe asks for.
        directories: Engine directory by role; a role may be missing.
    """
    found = []
    for side in pair.sides:
        if side.role in directories:
            directory = directories[side.role]
            different = differences(pair, side, directory)
            if different:
                violation = Violation(
                    side.role,
                    f"{directory} does not match the recipe: {'; '.join(different)}",
                    f"run draftproof engines --recipe {pair.recipe.argument} --runtime tensorrt_llm, or "
                    "correct the recipe",
                )
                found.append(Finding(_RULE, _SOURCE, violation))
    return found
