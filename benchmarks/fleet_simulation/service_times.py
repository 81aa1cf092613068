"""How fast a server works, from recorded measurements of ``demo-large``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.recipe import Recipe

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
_PROMPTS = "code"
_BLOCK_TOKENS = 32


@dataclass(frozen=True)
class ServiceTimes:
    """Speed and size of one server.

    Attributes:
        num_at_once: Numbers of concurrent answers that were measured, increasing.
        tokens_per_s: Output tokens per second of all these answers together.
        prompt_tokens_per_s: Tokens of prompts per second.
        max_batch_size: Most concurrent answers.
        cache_tokens: Tokens that the target's cache holds.
        sources: Commits of the measurements, by their files.
    """

    num_at_once: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    prompt_tokens_per_s: float
    max_batch_size: int
    cache_tokens: int
    sources: dict[str, str]

    @classmethod
    def recorded(cls, recipe: Recipe) -> ServiceTimes:
        """Read the result files of a recipe; its server drafts as it chooses, and is asked for code."""
        bench = _read(f"bench-{recipe.name}.json")
        caches = _read(f"kv-caches-{recipe.name}.json")
        speeds = {
            cell["load"]["num_at_once"]: arm["output_tokens_per_s"]["median"]
            for cell in bench["cells"]
            if cell["prompt_set"] == _PROMPTS and cell["load"]["kind"] == "closed"
            for arm in cell["arms"]
            if arm["arm"] == "adaptive"
        }
        float32 = next(cache for cache in caches["caches"] if cache["dtype"] == "float32")
        prompt_s = float32["steps"][0]["prompt_ms"] / 1e3
        num_blocks = recipe.target.kv_cache.num_blocks
        assert num_blocks is not None, "the recipe names the size of its cache"
        return cls(
            num_at_once=tuple(sorted(speeds)),
            tokens_per_s=tuple(speeds[number] for number in sorted(speeds)),
            prompt_tokens_per_s=caches["prompt_tokens"] / prompt_s,
            max_batch_size=recipe.serving.max_batch_size,
            cache_tokens=_BLOCK_TOKENS * (num_blocks - 1),  # one block is reserved
            sources={
                "output tokens": bench["conditions"]["git_sha"],
                "prompts": caches["conditions"]["git_sha"],
            },
        )

    def speed(self, num_at_once: int) -> float:
        """Return output tokens per second of each of ``num_at_once`` answers."""
        return float(np.interp(num_at_once, self.num_at_once, self.tokens_per_s)) / num_at_once


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_RESULTS / name).read_text(encoding="utf-8"))
    return document
