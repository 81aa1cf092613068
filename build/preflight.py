"""Check that a draft and a target fit together: ``python -m build.preflight --recipe demo``.

The check runs before anything is compiled or loaded. This module holds the command and the rules of the
embedded runtime; the rules of TensorRT-LLM are in ``build/tensorrt_llm/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build.checkpoints.engine_texts import read_engine_texts
from build.checkpoints.token_map import LEAST_SHARE, ModelTokens, TokenMap, map_tokens
from build.checkpoints.tokenizer_file import TokenizerInfo, find_end_ids, read_tokenizer
from build.command_line import add_engines, add_runtime, recipe_parser, run_command
from build.hub.pinned import pin_recipe, repositories
from build.hugging_face.mtp import is_mtp
from build.memory import NO_ENGINE, EngineMemory, MemoryPlan, plan_memory
from build.networks.growth import check_growth, grown_config
from build.networks.linear import Linear
from build.networks.network import NetworkConfig
from build.networks.source import NetworkSource, open_network, open_settings
from build.quantization.quantized_checkpoint import checkpoint_for
from build.recipe import EngineRecipe, Recipe, load_recipe
from build.tensorrt_llm.preflight import run_preflight
from pipelines.available_resources import available_bytes
from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import CheckpointError, IncompatiblePairError, RecipeError
from pipelines.places import ENGINES, RUN


@dataclass(frozen=True)
class EngineSource:
    """A checkpoint that has passed the checks for an engine.

    Attributes:
        network: Its settings and weights.
        tokenizer_path: Path of its ``tokenizer.json``.
        tokenizer: Content of that file.
        end_ids: Tokens that end a text.
        texts: Content of the engine's further files by name, such as ``chat.json``.
        token_map: How a draft with another tokenizer reads and proposes these tokens.
    """

    network: NetworkSource
    tokenizer_path: Path
    tokenizer: TokenizerInfo
    end_ids: tuple[int, ...]
    texts: Mapping[str, str]
    token_map: TokenMap | None = None


def read_source(
    engine: EngineRecipe,
    directory: Path,
    max_seq_len: int,
    opened: Callable[[Path, int, NetworkSource | None], NetworkSource] = open_network,
    target: EngineSource | None = None,
) -> EngineSource:
    """Read one engine's checkpoint and tokenizer.

    Args:
        engine: The engine's section of the recipe.
        directory: The checkpoint that it is compiled from (``build/quantization/quantized_checkpoint.py``).
        max_seq_len: Longest text that a server accepts, tokens.
        opened: Opens it; ``open_settings`` needs no weights.
        target: The target of a draft. A trained head has no tokenizer but the target's.

    Raises:
        CheckpointError: One of them is invalid, or the tokenizer has more tokens than the network.
        RecipeError: The network cannot be grown to the sizes in the recipe.
    """
    network = opened(directory, max_seq_len, None if target is None else target.network)
    if network.config.reads_features and target is not None:
        return replace(target, network=network)
    path = directory / "tokenizer.json"
    tokenizer = read_tokenizer(path)
    vocab_size = network.config.vocab_size
    if tokenizer.num_tokens > vocab_size:
        raise CheckpointError(
            f"{path} has {tokenizer.num_tokens} tokens, and config.json beside it vocab_size={vocab_size}",
            "download this model's own tokenizer into the checkpoint directory",
        )
    if engine.growth is not None:
        check_growth(network.config, engine.growth)
    published = engine.checkpoint_directory()
    return EngineSource(
        network,
        path,
        tokenizer,
        find_end_ids(published, tokenizer, vocab_size),
        read_engine_texts(published),
    )


def _with_tokens_of(target: EngineSource, draft: EngineSource, recipe: Recipe) -> EngineSource:
    """Return a draft that proposes and reads the target's tokens.

    Raises:
        IncompatiblePairError: The tokenizers differ, and too few tokens of a text are tokens of both.
    """
    if draft.tokenizer.sha256 == target.tokenizer.sha256:
        return draft
    own, others = (
        ModelTokens(source.tokenizer_path, source.network.config.vocab_size, source.end_ids)
        for source in (draft, target)
    )
    token_map = map_tokens(own, others)
    if token_map.share < LEAST_SHARE:
        raise IncompatiblePairError(
            f"recipe {recipe.name}: draft and target have too few tokens in common: {token_map.summary}, and "
            f"below {LEAST_SHARE:.0%} even a perfect draft proposes less than one token per round",
            "choose a draft from the target's model family, or one with a larger vocabulary",
        )
    return replace(
        draft,
        tokenizer_path=target.tokenizer_path,
        tokenizer=target.tokenizer,
        end_ids=target.end_ids,
        token_map=token_map,
    )


def check_pair(recipe: Recipe, draft: EngineSource | None, target: EngineSource) -> None:
    """Check that draft and target end texts alike, and that both support the server's context length.

    Raises:
        IncompatiblePairError: End tokens or context lengths do not fit.
    """
    if draft is not None and not set(draft.end_ids) & set(target.end_ids):
        raise IncompatiblePairError(
            f"recipe {recipe.name}: draft and target have no end token in common: draft {draft.end_ids}, "
            f"target {target.end_ids}",
            "choose a draft from the target's model family, or correct the end tokens of one of them",
        )
    for role, source in _by_role(draft, target).items():
        positions = source.network.config.max_position_embeddings
        if positions < recipe.serving.max_seq_len:
            raise IncompatiblePairError(
                f"recipe {recipe.name}: serving.max_seq_len={recipe.serving.max_seq_len} is longer than the "
                f"{role}'s context, max_position_embeddings={positions}",
                "lower serving.max_seq_len, or choose another checkpoint",
            )


def _by_role(draft: EngineSource | None, target: EngineSource) -> dict[str, EngineSource]:
    return {"target": target} if draft is None else {"draft": draft, "target": target}


def check_attention(recipe: Recipe, draft: EngineSource | None, target: EngineSource) -> None:
    """Check that the recipe has attention that can compute each network.

    Raises:
        RecipeError: A network needs attention of our own, and the recipe has OpenVINO's for it.
    """
    for role, source in _by_role(draft, target).items():
        reason = source.network.config.own_attention_reason
        if reason is not None and recipe.engines[role].attention == "openvino":
            raise RecipeError(
                f"recipe {recipe.name}: OpenVINO's attention cannot compute the {role}, which has {reason}",
                f"set 'attention: draftproof' in section '{role}' of the recipe; g++ compiles it",
            )


def check_recurrence(recipe: Recipe, draft: EngineSource | None, target: EngineSource) -> None:
    """Check what networks with recurrent layers cannot do.

    Raises:
        RecipeError: The draft has them, or drafts are longer than the log of a target that has them.
    """
    if draft is not None and draft.network.config.recurrence is not None:
        raise RecipeError(
            f"recipe {recipe.name}: the draft has recurrent layers, {draft.network.config.architecture}, and "
            "these cannot go back as a draft does in every round",
            "choose a draft with attention alone; if the target's checkpoint has an MTP module "
            "(mtp_num_hidden_layers), name the target as its own draft",
        )
    if target.network.config.recurrence is not None and recipe.serving.max_draft_len >= MAX_LOGGED_ROWS:
        raise RecipeError(
            f"recipe {recipe.name}: serving.max_draft_len={recipe.serving.max_draft_len}, and a target with "
            f"recurrent layers can undo {MAX_LOGGED_ROWS - 1} tokens",
            "lower serving.max_draft_len",
        )


def _check_mask_token(recipe: Recipe, draft: EngineSource, target: EngineSource) -> None:
    """Check that the embedding keeps the mask token with as many rows as the target's (``fit_vocabulary``).

    Raises:
        IncompatiblePairError: The target has fewer.
    """
    mask, vocab_size = draft.network.config.mask_token_id, target.network.config.vocab_size
    if mask is not None and draft.token_map is None and mask >= vocab_size:
        raise IncompatiblePairError(
            f"recipe {recipe.name}: the draft's mask token is no row of the target: pard_token={mask}, "
            f"vocab_size={vocab_size}",
            "choose the draft that was made for this target's family",
        )


def _check_head_settings(recipe: Recipe, config: NetworkConfig) -> None:
    """Refuse settings that change what a trained head was trained with."""
    names = [("draft", "growth"), ("draft", "pad_vocab_size_to"), ("target", "growth")]
    if not is_mtp(config):
        names.append(("draft", "lm_head_rows"))
    given = [f"{role}.{name}" for role, name in names if getattr(recipe.engines[role], name) is not None]
    if given:
        raise RecipeError(
            f"recipe {recipe.name}: the draft is a trained head, whose output rows and positions are fixed, "
            f"with {', '.join(given)}",
            "remove them from the recipe",
        )


def check_recipe(recipe: Recipe, engines: Path = ENGINES) -> tuple[EngineSource | None, EngineSource]:
    """Check both checkpoints of a recipe, and that they form a pair.

    Args:
        recipe: The pair.
        engines: Folder that holds the engines and the quantized checkpoints.

    Returns:
        Draft, None without one, and target. A draft with another tokenizer gets the target's, and a map of
        its tokens.

    Raises:
        CheckpointError: A checkpoint is invalid.
        RecipeError: A network cannot be grown as requested, or needs other attention.
        IncompatiblePairError: The two do not fit together.
    """
    return _paired(recipe, lambda role: checkpoint_for(recipe, role, engines), open_network)


def check_settings(recipe: Recipe) -> tuple[EngineSource | None, EngineSource]:
    """Check a pair like ``check_recipe``, but by settings and tokenizers alone: the weights may be elsewhere.

    Raises:
        CheckpointError, RecipeError, IncompatiblePairError: As for ``check_recipe``.
    """
    return _paired(recipe, lambda role: recipe.engines[role].checkpoint_directory(), open_settings)


def _paired(
    recipe: Recipe,
    directory_of: Callable[[str], Path],
    opened: Callable[[Path, int, NetworkSource | None], NetworkSource],
) -> tuple[EngineSource | None, EngineSource]:
    longest = recipe.serving.max_seq_len
    target = read_source(recipe.target, directory_of("target"), longest, opened)
    draft = None
    if recipe.draft is not None:
        draft = read_source(recipe.draft, directory_of("draft"), longest, opened, target)
        if draft.network.config.reads_features:
            _check_head_settings(recipe, draft.network.config)
            layers = draft.network.config.feature_layers
            config = replace(target.network.config, feature_layers=layers)
            target = replace(target, network=target.network.with_config(config))
        draft = _with_tokens_of(target, draft, recipe)
        _check_mask_token(recipe, draft, target)
    check_pair(recipe, draft, target)
    check_recurrence(recipe, draft, target)
    check_attention(recipe, draft, target)
    return draft, target


def engine_memory(engine: EngineRecipe, source: EngineSource) -> EngineMemory:
    """Estimate the memory of an engine that is not built yet; its file has the size of the weights."""
    config = source.network.config
    if engine.growth is not None:
        config = grown_config(config, engine.growth)
    return EngineMemory.of_network(config, engine)


def plan_recipe(recipe: Recipe, draft: EngineSource | None, target: EngineSource, free: float) -> MemoryPlan:
    """Plan how a server of a pair will use the memory.

    Args:
        recipe: The pair.
        draft: Its draft; None without one.
        target: Its target.
        free: Free memory, bytes.

    Raises:
        RecipeError: The memory does not hold the pair.
    """
    engines = {
        role: engine_memory(recipe.engines[role], source) for role, source in _by_role(draft, target).items()
    }
    return plan_memory(engines["target"], engines.get("draft", NO_ENGINE), recipe.serving, free)


def weights_line(engine: EngineRecipe, source: EngineSource) -> str:
    """Say whether a quantization changes the weights of a target; its first layer stands for all."""
    network = source.network.read()
    layer, head = network.layer(0).linears(), (network.lm_head,)
    begin = "target: " if engine.quantization == "auto" else f"target, {engine.quantization}: "
    # Some weights of W8A16 may still be floats.
    is_w8a16 = engine.quantization == "checkpoint" and network.config.quant_algo == "W8A16"
    wanted = (
        ("layers", layer, "int8" if is_w8a16 else engine.rounding),
        ("the output head", head, engine.lm_head),
    )
    rounded = [part for part, linears, kind in wanted if not _are_kept(linears, kind)]
    if rounded:
        return f"{begin}rounds weights of {' and '.join(rounded)}"
    bits = sorted({linear.bits for linear in (*layer, *head) if linear.is_weight_only})
    if not bits:
        return f"{begin}weights stay as the checkpoint has them"
    own = "file" if network.config.quant_algo == "gguf" else "checkpoint"
    return f"{begin}the {own}'s own {' to '.join(map(str, sorted({bits[0], bits[-1]})))} bits, unchanged"


def _are_kept(linears: Sequence[Linear], quantization: str) -> bool:
    most = {"int8": 8, "int4": 4}.get(quantization)
    return most is None or all(each.is_weight_only and each.bits <= most for each in linears)


def _check_embedded(recipe: Recipe, engines: Path) -> dict[str, Any]:
    missing = [name for repository in repositories(recipe) for name in repository.missing_names()]
    draft, target = check_settings(recipe) if missing else check_recipe(recipe, engines)
    for role, source in _by_role(draft, target).items():
        print(f"{role}: {source.network.directory}, {source.tokenizer.num_tokens} tokens")
    if draft is not None and draft.token_map is not None:
        print(draft.token_map.notice)
    for line in plan_recipe(recipe, draft, target, available_bytes()).lines():
        print(line)
    if missing:
        print(f"{len(missing)} files of weights are not downloaded yet; draftproof engines does that")
    else:
        print(weights_line(recipe.target, target))
    return {"recipe": recipe.name, "runtime": recipe.runtime, "findings": []}


def _check(options: argparse.Namespace) -> dict[str, Any]:
    recipe = pin_recipe(load_recipe(options.recipe, options.runtime))
    if recipe.runtime == "embedded":
        return _check_embedded(recipe, options.engines)
    return run_preflight(recipe, options.engines, options.run)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser(
        "draftproof preflight", "Check that a pair fits together before anything is built."
    )
    add_runtime(parser)
    add_engines(parser)
    parser.add_argument(
        "--run",
        type=Path,
        default=RUN,
        help="folder for <recipe>/preflight.json (default: .run)",
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _check(options), fails=lambda document: bool(document["findings"]))


if __name__ == "__main__":
    sys.exit(main())
