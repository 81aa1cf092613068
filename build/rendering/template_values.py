"""Compute the values of the placeholders in ``model_repository/`` from a recipe and its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build.recipe import REPOSITORY_ROOT, Recipe
from build.rendering.tensorrt_llm_repository import engine_values
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.manifest import EngineFiles, engine_digest


@dataclass(frozen=True)
class PairNames:
    """Names of a pair's models; two pairs in one repository have different names.

    Attributes:
        speculative: Model that runs the speculative loop.
        draft: Model of the draft's engine, on TensorRT-LLM.
        target: Model of the target's engine; on the embedded runtime, the name of the target's socket.
        target_alone: Model that serves the target alone, on TensorRT-LLM.
    """

    speculative: str = "speculative"
    draft: str = "draft"
    target: str = "target"
    target_alone: str = "target_alone"

    def control(self, runtime: str) -> str:
        """Return the model whose process answers by the target alone."""
        return self.speculative if runtime == "embedded" else self.target_alone


def calibration_file(draft_engine: Path, target_engine: Path) -> Path:
    """Return the path of a pair's measurements, which ``python -m pipelines.bench.calibration`` writes."""
    return target_engine.parent / f"calibration-{draft_engine.name}-{target_engine.name}.json"


def template_values(
    recipe: Recipe,
    draft_engine: EngineFiles,
    target_engine: EngineFiles,
    run: Path,
    memory: MemoryPlan | None = None,
    names: PairNames = PairNames(),
    num_kv_blocks: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the values for the templates of the recipe's runtime; every value is used by a template.

    Args:
        recipe: The pair and the limits of its server.
        draft_engine: Engine of the draft.
        target_engine: Engine of the target; preprocessing uses its tokenizer.
        run: Directory for the sockets between models of the server.
        memory: How the engines share their GPUs; required on TensorRT-LLM.
        names: Names of the pair's models.
        num_kv_blocks: Blocks of the KV caches by role; required on the embedded runtime.

    Raises:
        EngineLoadError: The target has no tokenizer.
        DraftproofError: See ``tensorrt_llm_repository.engine_values``.
    """
    serving, fixed = recipe.serving, recipe.serving.num_draft_tokens
    # Relative to the server's working directory, because the path of a socket has at most 107 bytes.
    sockets = run.relative_to(REPOSITORY_ROOT) if run.is_relative_to(REPOSITORY_ROOT) else run
    shared = {
        "draft_engine_dir": str(draft_engine.directory),
        "draft_engine_digest": engine_digest(draft_engine.manifest),
        "target_engine_dir": str(target_engine.directory),
        "target_engine_digest": engine_digest(target_engine.manifest),
        "tokenizer_file": str(target_engine.path("tokenizer.json")),
        "tokenizer_sha256": target_engine.sha256("tokenizer.json"),
        "speculative_model": names.speculative,
        "target_socket": str(sockets / f"{names.target}.sock"),
        "speculative_socket": str(sockets / f"{names.speculative}.sock"),
        "max_batch_size": str(serving.max_batch_size),
        "max_seq_len": str(serving.max_seq_len),
        "max_queue_size": str(serving.max_queue_size),
        "max_draft_len": str(serving.max_draft_len),
        "num_draft_tokens": "adaptive" if fixed is None else str(fixed),
        "draft_length_file": str(run / "draft_length.json"),
        "arms_file": str(run / "arms.json"),
        "observations_file": str(run / "observations.jsonl"),
    }
    if recipe.runtime == "tensorrt_llm":
        assert memory is not None
        return {
            **shared,
            **engine_values(recipe, draft_engine.directory, target_engine.directory, memory),
            "engine_access": "tensorrt_llm",
            # Its engines do not tell what a step costs, by which lengths adapt.
            "num_draft_tokens": str(serving.max_draft_len) if fixed is None else str(fixed),
            "draft_model": names.draft,
            "target_model": names.target,
            "target_alone_model": names.target_alone,
        }
    assert num_kv_blocks is not None
    return {
        **shared,
        "engine_access": "in_process",
        **{f"{role}_num_kv_blocks": str(blocks) for role, blocks in num_kv_blocks.items()},
        "max_num_tokens": str(serving.max_num_tokens),
        "calibration_file": str(calibration_file(draft_engine.directory, target_engine.directory)),
        "lookup_corpus_file": str(run / f"lookup_corpus-{_tokenizer_identity(target_engine)[:16]}.npy"),
    }


def _tokenizer_identity(engine: EngineFiles) -> str:
    """Return what pairs that may follow each other have in common; others cannot read the tokens."""
    return str(engine.manifest.get("tokenizer_identity_sha256") or engine.sha256("tokenizer.json"))
