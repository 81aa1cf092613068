"""What a recipe and its engines decide in the model repository for TensorRT-LLM.

Numbers that an engine was built with are read from its own ``config.json``, as ``trtllm-build`` wrote it,
so that the repository cannot promise what the engine does not hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from build.manifest import read_manifest
from build.memory_plan import MemoryPlan
from build.recipe import EngineRecipe, Recipe
from pipelines.errors import EngineLoadError, RepositoryError

_LOGITS_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}


@dataclass(frozen=True)
class BuiltEngine:
    """What NVIDIA's ``config.json`` of an engine and our manifest beside it say.

    Attributes:
        vocab_size: Columns of the logits that stand for tokens.
        padded_vocab_size: Columns there are: as many as the ranks can share evenly.
        logits_type: Triton's name of the logits' type.
        end_ids: Tokens that end a text, as the manifest says.
        max_sequence: Tokens of prompt and drafts that one request can bring. Whole prompts are computed in
            one step, so the step's size bounds it too.
    """

    vocab_size: int
    padded_vocab_size: int
    logits_type: str
    end_ids: tuple[int, ...]
    max_sequence: int

    @classmethod
    def read(cls, directory: Path) -> BuiltEngine:
        """Read it.

        Source: ``TrtGptModel`` (maximum input length), ``ModelConfig::getVocabSizePadded`` (reading).

        Raises:
            EngineLoadError: It is missing or of another form.
        """
        path = directory / "config.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            manifest = read_manifest(directory) or {}
            network, built = document["pretrained_config"], document["build_config"]
            vocab_size = int(network["vocab_size"])
            world_size = int(network["mapping"]["world_size"])
            return cls(
                vocab_size=vocab_size,
                padded_vocab_size=-(-vocab_size // world_size) * world_size,
                logits_type=_LOGITS_TYPES[network["logits_dtype"]],
                end_ids=tuple(int(end_id) for end_id in manifest["end_ids"]),
                max_sequence=min(int(built["max_seq_len"]) - 1, int(built["max_num_tokens"])),
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
    draft, target = BuiltEngine.read(draft_engine), BuiltEngine.read(target_engine)
    serving = recipe.serving
    for role, built in (("draft", draft), ("target", target)):
        if built.max_sequence < serving.max_seq_len - 1:
            raise RepositoryError(
                f"the {role} engine cannot take the longest request that the recipe promises",
                values=f"min(max_seq_len - 1, max_num_tokens) of its config.json is {built.max_sequence}",
                limit=f"serving.max_seq_len - 1 = {serving.max_seq_len - 1}: each round sends all tokens so "
                "far, and a prompt is computed in one step",
                remedy="raise serving.max_num_tokens and build again, or lower serving.max_seq_len",
            )
    if draft.logits_type != target.logits_type:
        raise RepositoryError(
            "draft and target give logits of different types",
            values=f"draft {draft.logits_type}, target {target.logits_type}",
            limit="the draft's logits are handed to the target as they are",
            remedy="build both with the same logits_dtype",
        )
    _check_vocabularies(recipe, draft, target)
    participants = participant_ids(recipe)
    values = {
        "end_ids": _joined(target.end_ids),
        "logits_datatype": target.logits_type,
        "draft_vocab_size": str(draft.vocab_size),
        "draft_padded_vocab_size": str(draft.padded_vocab_size),
        "target_vocab_size": str(target.vocab_size),
        "target_padded_vocab_size": str(target.padded_vocab_size),
        "batch_scheduler_policy": recipe.tensorrt_llm.batch_scheduler_policy,
        "num_nodes": str(recipe.tensorrt_llm.num_nodes),
        "fast_logits": str(recipe.tensorrt_llm.fast_logits).lower(),
        # The loop and target_alone have at most so many calls open, and as many of others may wait.
        "engine_queue_size": str(serving.max_queue_size + 2 * serving.max_batch_size),
    }
    for role, engine, share in (
        ("draft", recipe.draft, memory.draft),
        ("target", recipe.target, memory.target),
    ):
        values[f"{role}_kv_cache_free_gpu_mem_fraction"] = str(share.kv_cache_free_gpu_mem_fraction)
        values[f"{role}_max_tokens_in_paged_kv_cache"] = str(share.max_tokens_in_paged_kv_cache)
        values[f"{role}_gpu_device_ids"] = _joined(gpu_device_ids(recipe, engine))
        values[f"{role}_participant_ids"] = _joined(participants[role])
    return values


def gpu_device_ids(recipe: Recipe, engine: EngineRecipe) -> tuple[int, ...]:
    """GPUs of one node that an engine runs on, as the C++ backend wants them: plain numbers.

    It splits the parameter at ``;`` into model instances and each part at ``,`` into GPUs
    (``model_state.cc``, ``utils::csvStrToVecInt``). The backslash before the comma that NVIDIA's
    documentation shows is for its ``fill_template.py``, which is not used here, and must not get there.
    """
    given = engine.tensorrt_llm.gpu_device_ids
    if given is not None:
        return given
    return tuple(range(engine.tensorrt_llm.world_size // recipe.tensorrt_llm.num_nodes))


def participant_ids(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """MPI ranks of each engine; none where the backend finds them itself.

    Orchestrator with workers of its own: none. Orchestrator with ranks that MPI started, as fast logits and
    several nodes need: rank 0 orchestrates, then come the draft's ranks, then the target's; without them the
    model does not load. Leader: all ranks work for both engines; where one has fewer, it takes the first ones
    (reading).
    """
    sizes = {"draft": recipe.draft.tensorrt_llm.world_size, "target": recipe.target.tensorrt_llm.world_size}
    if recipe.tensorrt_llm.mode == "leader":
        if sizes["draft"] == sizes["target"]:
            return {"draft": (), "target": ()}
        return {role: tuple(range(size)) for role, size in sizes.items()}
    if not recipe.tensorrt_llm.fast_logits and recipe.tensorrt_llm.num_nodes == 1:
        return {"draft": (), "target": ()}
    first = 1 + sizes["draft"]
    return {"draft": tuple(range(1, first)), "target": tuple(range(first, first + sizes["target"]))}


def _check_vocabularies(recipe: Recipe, draft: BuiltEngine, target: BuiltEngine) -> None:
    """Refuse a draft that can propose what the target does not have.

    Raises:
        RepositoryError: It can, or its logits have another width where nobody can mend that.
    """
    is_direct = recipe.tensorrt_llm.fast_logits  # from GPU to GPU, past all code of ours
    if draft.vocab_size > target.vocab_size or (
        is_direct and draft.padded_vocab_size != target.padded_vocab_size
    ):
        raise RepositoryError(
            "the vocabularies of draft and target do not fit together",
            values=f"draft {draft.vocab_size} (padded {draft.padded_vocab_size}), "
            f"target {target.vocab_size} (padded {target.padded_vocab_size})",
            limit="the draft's not above the target's; with fast_logits the padded ones equal",
            remedy="pad the smaller model's vocabulary when it is quantized, or switch fast_logits off",
        )


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
