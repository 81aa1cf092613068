"""Recipes: one YAML file per draft/target pair, parsed strictly into frozen dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.errors import RecipeError

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
RECIPES = Path(__file__).resolve().parent / "recipes"

_CHOICES = {
    "runtime": ("embedded",),
    "quantization": ("none", "int8", "checkpoint"),
    "lm_head": ("int8", "checkpoint"),
    "dtype": ("float32", "float16"),
    "thread_placement": ("pinned", "free"),
    "engine_access": ("in_process", "bls"),
}
_MINIMUM = {"num_draft_tokens": 0, "num_blocks": 2, "max_num_tokens": 4, "max_seq_len": 2}
_REMEDY = {"num_draft_tokens": "leave it out to draft as many as pay, or give a number; 0 drafts none"}


@dataclass(frozen=True)
class Growth:
    """Sizes that a network is grown to without changing its function (``build/growth.py``)."""

    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    seed: int = 0


@dataclass(frozen=True)
class KvCache:
    """The paged cache of keys and values.

    Attributes:
        dtype: ``float32`` or ``float16``; part of the engine.
        num_blocks: Blocks of 32 tokens that a server allocates; not part of the engine.
    """

    dtype: str = "float32"
    num_blocks: int = 1024


@dataclass(frozen=True)
class EngineRecipe:
    """How one of the two engines is made; keys as described in docs of the YAML files.

    Attributes:
        checkpoint: Checkpoint directory, relative to the repository root unless absolute.
        quantization: ``int8``: weight-only, per channel, made at build time. ``checkpoint``: whatever
            the checkpoint holds. ``none``: floating point.
        lm_head: ``int8`` or ``checkpoint``. Exporters leave the output head unquantized, yet it is read
            whole at every step; making it INT8 departs from the checkpoint, so the recipe has to say it.
        num_threads: Threads of one step.
        thread_placement: ``pinned`` to processors, or ``free`` for the operating system to move. Which
            is faster depends on what else runs; ``make tune`` measures it.
        kv_cache: Cache of keys and values.
        growth: Sizes to grow to, or None.
    """

    checkpoint: str
    quantization: str = "int8"
    lm_head: str = "checkpoint"
    num_threads: int = 2
    thread_placement: str = "pinned"
    kv_cache: KvCache = KvCache()
    growth: Growth | None = None

    @property
    def checkpoint_directory(self) -> Path:
        """The checkpoint's absolute path."""
        return REPOSITORY_ROOT / self.checkpoint


@dataclass(frozen=True)
class Serving:
    """Limits of the server.

    Attributes:
        max_batch_size: Requests that run at once.
        max_num_tokens: Tokens of one step at most.
        max_seq_len: Prompt and answer together, tokens.
        max_queue_size: Requests that may wait.
        max_draft_len: Most draft tokens of a round.
        num_draft_tokens: Draft tokens of a round where a request does not say; 0 for no speculation, None
            to follow acceptance and load.
        engine_access: ``in_process``: the loop holds both engines. ``bls``: it calls models of the server.
    """

    max_batch_size: int = 16
    max_num_tokens: int = 512
    max_seq_len: int = 1024
    max_queue_size: int = 64
    max_draft_len: int = 8
    num_draft_tokens: int | None = None
    engine_access: str = "in_process"


@dataclass(frozen=True)
class Recipe:
    """A draft/target pair: how both engines are made and how they are served.

    Attributes:
        name: Also the name of the folder under ``engines/`` and ``.run/``.
        runtime: ``embedded``, the runtime of machines without a GPU.
        path: The YAML file.
    """

    name: str
    target: EngineRecipe
    draft: EngineRecipe
    serving: Serving
    path: Path
    runtime: str = "embedded"


_SECTIONS: dict[str, Any] = {
    "target": EngineRecipe,
    "draft": EngineRecipe,
    "serving": Serving,
    "growth": Growth,
    "kv_cache": KvCache,
}


def _fail(path: Path, what: str, values: str, limit: str, remedy: str = "correct the recipe") -> RecipeError:
    return RecipeError(f"{path}: {what}", values=values, limit=limit, remedy=remedy)


def _scalar(path: Path, name: str, key: str, value: Any, kind: str) -> Any:
    if kind.startswith("int"):
        minimum = _MINIMUM.get(key, 0 if key == "seed" else 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise _fail(
                path,
                "a value is out of range",
                f"{name}={value!r}",
                f"a whole number of at least {minimum}",
                _REMEDY.get(key, "correct the recipe"),
            )
        return value
    if not isinstance(value, str) or not value:
        raise _fail(path, "a value has the wrong type", f"{name}={value!r}", "text")
    allowed = _CHOICES.get(key)
    if allowed is not None and value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1)
        hint = f"did you mean {near[0]}?" if near else "choose one of them"
        raise _fail(path, "a value is not one of the choices", f"{name}={value}", ", ".join(allowed), hint)
    return value


def _section(path: Path, prefix: str, cls: Any, raw: Any, given: Mapping[str, Any] | None = None) -> Any:
    if not isinstance(raw, dict):
        where = prefix.rstrip(".") or "the file"
        raise _fail(path, "a section is not a mapping", f"{where}: {type(raw).__name__}", "keys and values")
    values: dict[str, Any] = dict(given or {})
    fields = {field.name: field for field in dataclasses.fields(cls) if field.name not in values}
    for key in raw:
        if key not in fields:
            near = difflib.get_close_matches(str(key), list(fields), 1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else "remove it"
            raise _fail(path, "unknown key", f"{prefix}{key}", f"known here: {', '.join(fields)}", hint)
    for key, field in fields.items():
        if key in raw and not (raw[key] is None and field.default is None):
            values[key] = (
                _section(path, f"{prefix}{key}.", _SECTIONS[key], raw[key])
                if key in _SECTIONS
                else _scalar(path, f"{prefix}{key}", key, raw[key], str(field.type))
            )
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _fail(path, "a key is missing", f"{prefix}{key}", f"required: {prefix}{key}", "add it")
    return cls(**values)


def parse_recipe(raw: Any, path: Path) -> Recipe:
    """Check a parsed YAML document.

    Args:
        raw: What the YAML parser gave.
        path: The file, for error messages.

    Raises:
        RecipeError: A key is unknown, missing, or has a value of the wrong type or range.
    """
    recipe: Recipe = _section(path, "", Recipe, raw, {"path": path})
    serving = recipe.serving
    if not recipe.name.replace("-", "").replace("_", "").isalnum():
        raise _fail(path, "a value is out of range", f"name={recipe.name!r}", "letters, digits, - and _")
    if (serving.num_draft_tokens or 0) > serving.max_draft_len:
        raise _fail(
            path,
            "serving.num_draft_tokens is too large",
            f"num_draft_tokens={serving.num_draft_tokens}",
            f"max_draft_len={serving.max_draft_len}",
        )
    if serving.max_draft_len >= serving.max_seq_len:
        raise _fail(
            path,
            "serving.max_draft_len is too large",
            f"max_draft_len={serving.max_draft_len}",
            f"below max_seq_len={serving.max_seq_len}",
        )
    # A verification of one request is max_draft_len + 1 rows and has to fit into one step.
    if serving.max_draft_len + 1 > serving.max_num_tokens:
        raise _fail(
            path,
            "serving.max_num_tokens is too small",
            f"max_num_tokens={serving.max_num_tokens}",
            f"at least max_draft_len + 1 = {serving.max_draft_len + 1}",
        )
    for role, engine in (("target", recipe.target), ("draft", recipe.draft)):
        capacity = 32 * (engine.kv_cache.num_blocks - 1)  # one block is scratch
        if capacity < serving.max_seq_len:
            raise _fail(
                path,
                f"{role}.kv_cache.num_blocks is too small for one request",
                f"num_blocks={engine.kv_cache.num_blocks}, room for {capacity} tokens",
                f"max_seq_len={serving.max_seq_len}",
                "raise num_blocks or lower max_seq_len",
            )
    return recipe


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe by name (``demo``) or by the path of its YAML file.

    Raises:
        RecipeError: There is no such recipe, or it is not valid.
    """
    text = str(name_or_path)
    is_path = text.endswith((".yaml", ".yml")) or "/" in text
    path = Path(text) if is_path else RECIPES / f"{text}.yaml"
    if not path.is_file():
        known = sorted(recipe.stem for recipe in RECIPES.glob("*.yaml"))
        near = difflib.get_close_matches(text, known, 1)
        raise RecipeError(
            f"there is no recipe {text}",
            values=f"looked for {path}",
            limit=f"known recipes: {', '.join(known)}",
            remedy=f"did you mean {near[0]}?" if near else "give a known name or the path of a YAML file",
        )
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(
            f"{path} is not valid YAML",
            values=" ".join(str(error).split()),
            limit="a recipe is one YAML mapping",
            remedy="correct the file; build/recipes/demo.yaml is an example",
        ) from None
    return parse_recipe(raw, path)
