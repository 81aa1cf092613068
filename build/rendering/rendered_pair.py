"""A pair of engines as models are rendered for it: their placeholders' values, and its record.

``model_repository/`` has the placeholders, and ``pipelines/deploy/triton/pair_record.py`` defines the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from build.recipe import Recipe
from build.rendering.tensorrt_llm_repository import engine_values
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.errors import RepositoryError
from pipelines.manifest import EngineFiles, engine_digest, sha256_json
from pipelines.places import CODE, DATA


@dataclass(frozen=True)
class RenderedPair:
    """A pair, and how it uses the memory of a server.

    Attributes:
        recipe: The pair and the limits of its server.
        draft: Engine of the draft; None without a draft.
        target: Engine of the target; preprocessing uses its tokenizer.
        run: Run directory of the server, absolute.
        memory: How the engines share their GPUs; required on TensorRT-LLM.
        num_kv_blocks: Blocks of the KV caches by role; required on the embedded runtime.
        served_model_name: Name that clients send as ``model``; "" for the recipe's.
    """

    recipe: Recipe
    draft: EngineFiles | None
    target: EngineFiles
    run: Path
    memory: MemoryPlan | None = None
    num_kv_blocks: Mapping[str, int] = field(default_factory=dict)
    served_model_name: str = ""

    @property
    def fingerprint(self) -> str:
        """Hash of the pair: its engines and all settings of the recipe that reach a server."""
        recipe = self.recipe
        settings: dict[str, Any] = {"serving": asdict(recipe.serving)}
        for name in ("default_sampling", "prompt_cache_dir", "prompt_cache_gb"):
            del settings["serving"][name]  # of the front door, and of the machine
        if recipe.runtime == "embedded":
            settings["kv_blocks"] = [engine.kv_cache.num_blocks for engine in recipe.engines.values()]
        else:
            settings["engines"] = [asdict(engine.tensorrt_llm) for engine in recipe.engines.values()]
            settings["tensorrt_llm"] = asdict(recipe.tensorrt_llm)
        engines = [self.engine_fingerprint(role) for role in recipe.engines]
        return sha256_json({"runtime": recipe.runtime, "engines": engines, **settings})

    def engine_fingerprint(self, role: str) -> str:
        """Return the hash of everything an engine was built from; equal engines of two recipes have the same.

        Raises:
            RepositoryError: The manifest does not contain it.
        """
        fingerprint = getattr(self, role).manifest.get("fingerprint")
        if not isinstance(fingerprint, str) or not fingerprint:
            raise RepositoryError(
                f"an engine's manifest has no fingerprint: fingerprint={fingerprint!r}",
                "run 'draftproof engines'",
            )
        return fingerprint

    @cached_property
    def values(self) -> dict[str, str]:
        """Values for the templates of the recipe's runtime; every value is used by a template.

        Raises:
            EngineLoadError: The target has no tokenizer.
            DraftproofError: See ``tensorrt_llm_repository.engine_values``.
        """
        serving, fixed = self.recipe.serving, self.recipe.serving.num_draft_tokens
        # Relative to the server's working directory, because the path of a socket has at most 107 bytes.
        is_inside = self.run.is_relative_to(CODE)
        sockets = self.run.relative_to(CODE) if is_inside else self.run
        shared = {
            "draft_engine_dir": str(self.draft.directory) if self.draft else "",
            "draft_engine_digest": engine_digest(self.draft.manifest) if self.draft else "",
            "target_engine_dir": str(self.target.directory),
            "target_engine_digest": engine_digest(self.target.manifest),
            "tokenizer_file": str(self.target.path("tokenizer.json")),
            "tokenizer_sha256": self.target.sha256("tokenizer.json"),
            "target_socket": str(sockets / "target.sock"),
            "speculative_socket": str(sockets / f"{LOOP}.sock"),
            "max_batch_size": str(serving.max_batch_size),
            "max_seq_len": str(serving.max_seq_len),
            "max_queue_size": str(serving.max_queue_size),
            "max_draft_len": str(serving.max_draft_len),
            "num_draft_tokens": "adaptive" if fixed is None else str(fixed),
            "draft_length_file": str(self.run / "draft_length.json"),
            "arms_file": str(self.run / "arms.json"),
            "served_model_name": self.served_model_name or self.recipe.name,
            "observations_file": str(self.run / "observations.sqlite"),
        }
        if self.recipe.runtime == "tensorrt_llm":
            assert self.memory is not None and self.draft is not None
            return {
                **shared,
                **engine_values(self.recipe, self.draft.directory, self.target.directory, self.memory),
                "engine_access": "tensorrt_llm",
                # Its engines do not tell what a step costs, by which lengths adapt.
                "num_draft_tokens": str(serving.max_draft_len) if fixed is None else str(fixed),
            }
        gigabytes = serving.prompt_cache_gb
        return {
            **shared,
            "engine_access": "in_process",
            "prompt_cache_dir": str(DATA / (serving.prompt_cache_dir or self.run / "prompt_cache")),
            "prompt_cache_bytes": "" if gigabytes is None else str(int(gigabytes * 1e9)),
            "draft_num_kv_blocks": str(self.num_kv_blocks.get("draft", 0)),
            "target_num_kv_blocks": str(self.num_kv_blocks["target"]),
            "max_num_tokens": str(serving.max_num_tokens),
        }

    @property
    def record(self) -> PairRecord:
        """The record of the pair."""
        return PairRecord(
            name=self.recipe.name,
            fingerprint=self.fingerprint,
            runtime=self.recipe.runtime,
            socket=self.values["speculative_socket"],
            draft_engine_dir=self.values["draft_engine_dir"],
            draft_digest=self.values["draft_engine_digest"],
            target_engine_dir=self.values["target_engine_dir"],
            target_fingerprint=self.engine_fingerprint("target"),
            target_digest=self.values["target_engine_digest"],
            num_kv_blocks=dict(self.num_kv_blocks),
            max_batch_size=self.recipe.serving.max_batch_size,
        )
