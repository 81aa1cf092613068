"""What a recipe and its engines decide in the model repository for TensorRT-LLM.

Numbers that an engine was built with are read from its own ``config.json``, as ``trtllm-build`` wrote it,
so that the repository cannot promise what the engine does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.manifest import read_manifest
from build.memory_plan import MemoryPlan
from build.recipe import Recipe
from build.tensorrt_llm.engine_limits import (
    EngineLimits,
    draft_vocabulary,
    engine_limits,
    fast_logits_columns,
    longest_request,
)
from build.tensorrt_llm.ranks import gpu_device_ids, num_nodes, participant_ids
from build.tensorrt_llm.rules import Broken
from pipelines.errors import EngineLoadError, RepositoryError

_LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}


@dataclass(frozen=True)
class BuiltEngine:
    """What NVIDIA's ``config.json`` of an engine and our manifest beside it say.

    Attributes:
        limits: What it takes and gives.
        logits_type: Triton's name of the logits' type.
        end_ids: Tokens that end a text, as the manifest says.
    """

    limits: EngineLimits
    logits_type: str
    end_ids: tuple[int, ...]

    @classmethod
    def read(cls, role: str, directory: Path) -> BuiltEngine:
        """Read them.

        Raises:
            EngineLoadError: It is missing or of another form.
        """
        path = directory / "config.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            manifest = read_manifest(directory) or {}
            network, built = document["pretrained_config"], document["build_config"]
            return cls(
                limits=engine_limits(
                    role,
                    vocab_size=int(network["vocab_size"]),
                    world_size=int(network["mapping"]["world_size"]),
                    max_seq_len=int(built["max_seq_len"]),
                    max_num_tokens=int(built["max_num_tokens"]),
                ),
                logits_type=_LOGITS_TYPES[network["logits_dtype"]],
                end_ids=tuple(int(end_id) for end_id in manifest["end_ids"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the description of a TensorRT-LLM engine cannot be read",
                values=f"{path}: {error!r}",
                limit="config.json as trtllm-build 1.2.1 writes it, logits float32 or float16; end_ids in "
                "manifest.json",
                remedy="run 'make engines' again",
            ) from None


def engine_values(
    recipe: Recipe, draft_engine: Path, target_engine: Path, memory: MemoryPlan
) -> dict[str, str]:
    """Values that only the templates for TensorRT-LLM name.

    Args:
        recipe: Whose ``tensorrt_llm`` sections count.
        draft_engine: Engine directory.
        target_engine: Engine directory.
        memory: How the engines share their GPUs.

    Raises:
        EngineLoadError: An engine's description cannot be read.
        RepositoryError: The engines do not hold what the recipe promises.
    """
    draft, target = BuiltEngine.read("draft", draft_engine), BuiltEngine.read("target", target_engine)
    for broken in _unfit(recipe, draft.limits, target.limits):
        raise broken.error(RepositoryError)
    if draft.logits_type != target.logits_type:
        raise RepositoryError(
            "draft and target give logits of different types",
            values=f"draft {draft.logits_type}, target {target.logits_type}",
            limit="the draft's logits are handed to the target as they are",
            remedy="build both with the same logits_dtype",
        )
    serving = recipe.serving
    values = {
        "end_ids": _joined(target.end_ids),
        "logits_datatype": target.logits_type,
        "batch_scheduler_policy": recipe.tensorrt_llm.batch_scheduler_policy,
        "fast_logits": str(recipe.tensorrt_llm.fast_logits).lower(),
        # The loop and target_alone have at most so many calls open, and as many of others may wait.
        "engine_queue_size": str(serving.max_queue_size + 2 * serving.max_batch_size),
    }
    for role, built, share in (("draft", draft, memory.draft), ("target", target, memory.target)):
        values[f"{role}_kv_cache_free_gpu_mem_fraction"] = str(share.kv_cache_free_gpu_mem_fraction)
        values[f"{role}_max_tokens_in_paged_kv_cache"] = str(share.max_tokens_in_paged_kv_cache)
        # The backend splits these at ";" into model instances and at "," into numbers (model_state.cc,
        # utils::csvStrToVecInt). The backslash before the comma in NVIDIA's documentation is for its
        # fill_template.py, which is not used here, and must not get there.
        values[f"{role}_gpu_device_ids"] = _joined(gpu_device_ids(recipe, role))
        values[f"{role}_participant_ids"] = _joined(participant_ids(recipe, role))
        values[f"{role}_vocab_size"] = str(built.limits.vocab_size)
        values[f"{role}_padded_vocab_size"] = str(built.limits.padded_vocab_size)
        values[f"{role}_num_nodes"] = str(num_nodes(recipe, role))
    return values


def _unfit(recipe: Recipe, draft: EngineLimits, target: EngineLimits) -> Iterator[Broken]:
    """What the pre-flight would have refused, asked of the engines that are there."""
    for engine in (draft, target):
        yield from longest_request(engine, recipe.serving.max_seq_len)
    yield from draft_vocabulary(draft, target)
    yield from fast_logits_columns(draft, target, fast_logits=recipe.tensorrt_llm.fast_logits)


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
