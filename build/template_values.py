"""What a recipe and its engines decide in ``model_repository/``: the values that its templates name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from build.memory_plan import MemoryPlan
from build.recipe import REPOSITORY_ROOT, Recipe
from build.tensorrt_llm_repository import engine_values


@dataclass(frozen=True)
class PairNames:
    """What the models of a pair are called; of two pairs in one repository each has names of its own.

    Attributes:
        speculative: The loop.
        draft: TensorRT-LLM's engine, or the embedded runtime's as a model.
        target: Likewise.
        target_alone: What translates for ``target`` on TensorRT-LLM; the embedded one needs nobody.
    """

    speculative: str = "speculative"
    draft: str = "draft"
    target: str = "target"
    target_alone: str = "target_alone"

    def control(self, runtime: str) -> str:
        """The model that answers by the target alone."""
        return self.target if runtime == "embedded" else self.target_alone


def calibration_file(draft_engine: Path, target_engine: Path) -> Path:
    """Where the measurements of a pair lie; ``python -m pipelines.calibration`` makes them."""
    return target_engine.parent / f"calibration-{draft_engine.name}-{target_engine.name}.json"


def template_values(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run: Path,
    memory: MemoryPlan | None = None,
    names: PairNames = PairNames(),
) -> dict[str, str]:
    """What the templates of the recipe's runtime may name, and must: every value has to be used.

    Args:
        recipe: Limits of the server.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target; preprocessing uses its tokenizer.
        run: Gets the sockets over which models of the server call each other.
        memory: How the engines share their GPUs; needed on TensorRT-LLM alone.
        names: Of the pair's models.

    Raises:
        DraftproofError: As ``tensorrt_llm_repository.engine_values``.
    """
    serving = recipe.serving
    # Relative to the working directory of the server: the path of a socket has at most 107 bytes.
    sockets = run.relative_to(REPOSITORY_ROOT) if run.is_relative_to(REPOSITORY_ROOT) else run
    shared = {
        "draft_engine_dir": str(draft_engine),
        "target_engine_dir": str(target_engine),
        "tokenizer_file": str(target_engine / "tokenizer.json"),
        "speculative_model": names.speculative,
        "draft_model": names.draft,
        "target_model": names.target,
        "target_socket": str(sockets / f"{names.target}.sock"),
        "speculative_socket": str(sockets / f"{names.speculative}.sock"),
        "max_batch_size": str(serving.max_batch_size),
        "max_seq_len": str(serving.max_seq_len),
        "max_queue_size": str(serving.max_queue_size),
        "max_draft_len": str(serving.max_draft_len),
        "num_draft_tokens": "adaptive" if serving.num_draft_tokens is None else str(serving.num_draft_tokens),
        "draft_length_file": str(run / "draft_length.json"),
        "router_socket": str(sockets / "router.sock"),
        "arms_file": str(run / "arms.json"),
        "observations_file": str(run / "observations.jsonl"),
    }
    if recipe.runtime == "tensorrt_llm":
        assert memory is not None
        own = engine_values(recipe, draft_engine, target_engine, memory)
        return {
            **shared,
            **own,
            "engine_access": "tensorrt_llm",
            "target_alone_model": names.target_alone,
        }
    return {
        **shared,
        "engine_access": serving.engine_access,
        "draft_num_kv_blocks": str(recipe.draft.kv_cache.num_blocks),
        "target_num_kv_blocks": str(recipe.target.kv_cache.num_blocks),
        "max_num_tokens": str(serving.max_num_tokens),
        "calibration_file": str(calibration_file(draft_engine, target_engine)),
    }
