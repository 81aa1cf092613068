"""Lists the recipes for CPUs with what preflight says of their memory, and what a request needs."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

from benchmarks.rehearsal.published import MODELS
from build.hub.checkpoint_id import HubCheckpoint
from build.hugging_face.config import parse_network_config
from build.networks.config import NetworkConfig
from build.networks.memory import BLOCK_TOKENS, EngineMemory, num_parameters, plan_memory
from build.recipe import RECIPES, EngineRecipe, KvCache, Recipe, load_recipe
from pipelines.errors import RecipeError


def pair_memory() -> str:
    """Return a line for each recipe."""
    lines = [
        "| Recipe | Target | Draft | Download | Free memory that preflight asks for: INT8 | INT4 |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(load_recipe(path.stem)) for path in sorted(RECIPES.glob("*-cpu.yaml"))]
    return "\n".join(lines)


def _line(recipe: Recipe) -> str:
    configs = {role: _config(getattr(recipe, role)) for role in ("target", "draft")}
    download = sum(2 * _num_parameters(config) for config in configs.values())
    needed = []
    for quantization in ("int8", "int4"):
        target = dataclasses.replace(recipe.target, quantization=quantization)
        text = _least_memory(dataclasses.replace(recipe, target=target), configs)
        needed.append(f"**{text}**" if quantization == recipe.target.quantization else text)
    models = [
        f"{_repo(getattr(recipe, role))}, {_num_parameters(configs[role]) / 1e9:.2f} B" for role in configs
    ]
    return f"| `{recipe.name}` | {' | '.join([*models, f'{download / 1e9:.1f} GB', *needed])} |"


def _repo(engine: EngineRecipe) -> str:
    named = HubCheckpoint.parse(engine.checkpoint)
    assert named is not None, "recipes for CPUs name models of the hub"
    return named.repo


def _config(engine: EngineRecipe) -> NetworkConfig:
    return parse_network_config(MODELS[_repo(engine)], Path(_repo(engine)))


def _num_parameters(config: NetworkConfig) -> int:
    projections, table = num_parameters(config)
    return projections + table * (1 if config.share_embedding_table else 2)


def _least_memory(recipe: Recipe, configs: dict[str, NetworkConfig]) -> str:
    """Return what the refusal of preflight asks for, such as ``17.2 GB``."""
    target, draft = (
        EngineMemory.of_network(configs[role], getattr(recipe, role)) for role in ("target", "draft")
    )
    try:
        plan_memory(target, draft, recipe.serving, free=0.0)
    except RecipeError as error:
        found = re.match(r"[\d.]+ GB", error.limit)
        assert found is not None, error.limit
        return found[0]
    raise AssertionError("no memory cannot be enough")


def cache_memory() -> str:
    """Return a line for each recipe: what a request keeps in both caches."""
    dtypes = typing.get_args(typing.get_type_hints(KvCache)["dtype"])
    lines = [
        f"| Recipe | {' | '.join(f'A token, `{dtype}`' for dtype in dtypes)} | "
        f"4,096 tokens, `{dtypes[0]}` | `{dtypes[-1]}` |",
        f"|{'---|' * (3 + len(dtypes))}",
    ]
    for path in sorted(RECIPES.glob("*-cpu.yaml")):
        recipe = load_recipe(path.stem)
        sizes = [
            sum(_token_bytes(getattr(recipe, role), dtype) for role in ("target", "draft"))
            for dtype in dtypes
        ]
        requests = (f"{4096 * size / 1e9:.2f} GB" for size in (sizes[0], sizes[-1]))
        lines.append(
            f"| `{recipe.name}` | {' | '.join([*(f'{size / 1e3:.0f} kB' for size in sizes), *requests])} |"
        )
    return "\n".join(lines)


def _token_bytes(engine: EngineRecipe, dtype: typing.Any) -> float:
    cache = dataclasses.replace(engine.kv_cache, dtype=dtype)
    return (
        EngineMemory.of_network(_config(engine), dataclasses.replace(engine, kv_cache=cache)).block
        / BLOCK_TOKENS
    )
