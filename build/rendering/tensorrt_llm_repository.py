"""Compute the values of placeholders that only the templates for TensorRT-LLM have.

Limits of an engine are read from the ``config.json`` that ``trtllm-build`` wrote, so that the repository
cannot announce limits that the engine does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.recipe import Recipe
from build.tensorrt_llm.memory_plan import MemoryPlan
from build.tensorrt_llm.rules.limits import (
    EngineLimits,
    draft_vocabulary,
    engine_limits,
    longest_request,
)
from build.tensorrt_llm.rules.rule import Violation
from pipelines.errors import EngineLoadError, RepositoryError
from pipelines.manifest import read_manifest

_LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}


@dataclass(frozen=True)
class BuiltEngine:
    """Properties of a built engine, from NVIDIA's ``config.json`` and our manifest.

    Attributes:
        limits: Limits of the engine.
        logits_type: Triton's name for the type of the logits.
        gathers_logits: Whether it was built with ``--gather_generation_logits``.
        end_ids: Tokens that end a text, from the manifest.
    """

    limits: EngineLimits
    logits_type: str
    gathers_logits: bool
    end_ids: tuple[int, ...]

    @classmethod
    def read(cls, role: str, directory: Path) -> BuiltEngine:
        """Read both files of an engine directory.

        Raises:
            EngineLoadError: A file is missing or invalid.
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
                gathers_logits=bool(built["gather_generation_logits"]),
                end_ids=tuple(int(end_id) for end_id in manifest["end_ids"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the config.json or manifest.json of a TensorRT-LLM engine is invalid",
                values=f"{path}: {error!r}",
                limit="config.json of trtllm-build 1.2.1 with logits in float32 or float16, and end_ids in "
                "manifest.json",
                remedy="run 'draftproof engines' again",
            ) from None


def engine_values(
    recipe: Recipe, draft_engine: Path, target_engine: Path, memory: MemoryPlan
) -> dict[str, str]:
    """Return the values that only the templates for TensorRT-LLM use.

    Args:
        recipe: The pair.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target.
        memory: How the engines share their GPUs.

    Raises:
        EngineLoadError: An engine's ``config.json`` or manifest is invalid.
        RepositoryError: The engines do not meet the limits in the recipe.
    """
    draft, target = BuiltEngine.read("draft", draft_engine), BuiltEngine.read("target", target_engine)
    for violation in _unfit(recipe, draft.limits, target.limits):
        raise violation.error(RepositoryError)
    if draft.logits_type != target.logits_type:
        raise RepositoryError(
            "draft and target have logits of different types",
            values=f"draft {draft.logits_type}, target {target.logits_type}",
            limit="both must be the same, because the draft's logits are passed to the target",
            remedy="build both with the same logits_dtype",
        )
    if not draft.gathers_logits:
        raise RepositoryError(
            "the draft engine cannot return its logits, so no sampled request could use it",
            values=f"gather_generation_logits=False in {draft_engine / 'config.json'}",
            limit="the draft must be built with --gather_generation_logits: without it, TensorRT-LLM refuses "
            "requests for logits",
            remedy="run 'draftproof engines' again, which passes the flag",
        )
    serving = recipe.serving
    values = {
        "end_ids": _joined(target.end_ids),
        "logits_datatype": target.logits_type,
        "batch_scheduler_policy": recipe.tensorrt_llm.batch_scheduler_policy,
        # The loop and target_alone each have at most max_batch_size calls in flight; other calls may queue.
        "engine_queue_size": str(serving.max_queue_size + 2 * serving.max_batch_size),
    }
    for role, built, share in (("draft", draft, memory.draft), ("target", target, memory.target)):
        values[f"{role}_kv_cache_free_gpu_mem_fraction"] = str(share.kv_cache_free_gpu_mem_fraction)
        values[f"{role}_max_tokens_in_paged_kv_cache"] = str(share.max_tokens_in_paged_kv_cache)
        # The backend splits these at ";" into model instances and at "," into numbers (model_state.cc,
        # utils::csvStrToVecInt). NVIDIA's documentation has a backslash before the comma, which only its
        # fill_template.py needs.
        values[f"{role}_gpu_device_ids"] = _joined(getattr(recipe, role).tensorrt_llm.gpus)
        values[f"{role}_vocab_size"] = str(built.limits.vocab_size)
        values[f"{role}_padded_vocab_size"] = str(built.limits.padded_vocab_size)
    return values


def _unfit(recipe: Recipe, draft: EngineLimits, target: EngineLimits) -> Iterator[Violation]:
    """Check the built engines against the limits that preflight checks before a build."""
    for engine in (draft, target):
        yield from longest_request(engine, recipe.serving.max_seq_len)
    yield from draft_vocabulary(draft, target)


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
