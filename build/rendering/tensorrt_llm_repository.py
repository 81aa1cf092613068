"""Compute the values of placeholders that only the templates for TensorRT-LLM have.

The sizes of an engine are read from the ``config.json`` that ``trtllm-build`` wrote, and which was compared
with the recipe when the engine was built (``build/tensorrt_llm/check.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from build.recipe import Recipe
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.errors import EngineLoadError
from pipelines.manifest import read_manifest


@dataclass(frozen=True)
class BuiltEngine:
    """Properties of a built engine, from NVIDIA's ``config.json`` and our manifest.

    Attributes:
        vocab_size: Columns of the logits without padding.
        padded_vocab_size: Columns of the logits, a multiple of the engine's ranks
            (``ModelConfig::getVocabSizePadded``, called with ``WorldConfig::getSize()``).
        end_ids: Tokens that end a text, from the manifest.
    """

    vocab_size: int
    padded_vocab_size: int
    end_ids: tuple[int, ...]

    @classmethod
    def read(cls, directory: Path) -> BuiltEngine:
        """Read both files of an engine directory.

        Raises:
            EngineLoadError: A file is missing or invalid.
        """
        path = directory / "config.json"
        try:
            network = json.loads(path.read_text(encoding="utf-8"))["pretrained_config"]
            vocab_size, num_ranks = int(network["vocab_size"]), int(network["mapping"]["world_size"])
            end_ids = tuple(int(end_id) for end_id in (read_manifest(directory) or {})["end_ids"])
            return cls(vocab_size, -(-vocab_size // num_ranks) * num_ranks, end_ids)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                f"{path}: config.json or manifest.json of a TensorRT-LLM engine is invalid: {error!r}",
                "run 'draftproof engines' again",
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
    """
    draft, target = BuiltEngine.read(draft_engine), BuiltEngine.read(target_engine)
    serving = recipe.serving
    values = {
        "end_ids": _joined(target.end_ids),
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
        values[f"{role}_vocab_size"] = str(built.vocab_size)
        values[f"{role}_padded_vocab_size"] = str(built.padded_vocab_size)
    return values


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
