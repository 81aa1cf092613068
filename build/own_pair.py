"""Write the recipe of a target and its draft: ``python -m build.own_pair TARGET [DRAFT]``.

Each is a directory, a GGUF file, or ``hf://ORGANIZATION/NAME@REVISION`` on the hub. Settings and tokenizers
are checked, and a plan of the memory is printed. Then what is on the hub is downloaded. Nothing is compiled.
``draftproof try`` calls this program and continues with the recipe.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from build.built_pair import check_prompts
from build.checkpoints.engine_texts import read_sampling_defaults
from build.command_line import print_line, run_command
from build.fetch import fetch_checkpoints
from build.files import Need
from build.hub.checkpoint_id import DEFAULT_BRANCH, HubCheckpoint
from build.hub.pinned import opened
from build.memory import BLOCK_TOKENS, MemoryPlan, num_parameters
from build.networks.network import NetworkConfig
from build.networks.source import open_settings
from build.operators.library import check_operators, has_operators
from build.preflight import check_recipe, check_settings, plan_recipe, weights_line
from build.recipe import GGUF_SUFFIX, EngineRecipe, Recipe, load_recipe, parse_recipe
from pipelines.atomic_file import write_whole
from pipelines.available_resources import available_bytes, available_cores, has_avx2_alone
from pipelines.configuration import load_yaml
from pipelines.errors import IncompatiblePairError, RecipeError
from pipelines.places import ENGINES

_LEAST_CONTEXT = 2048
_CACHE_SHARE = 1 / 3  # of the free memory, for two requests of the whole context
_QUANTIZATIONS = ("auto", "int8", "int4", "none", "checkpoint")
_UNCHANGED = ("none", "checkpoint")
_TARGET_HEADS = {"auto": "int8", "int8": "int8", "int4": "int8"}  # quantization -> that of the output head
_DRAFT_HEADS = {"auto": "int8", "int8": "int8", "int4": "int4"}
_DRAFT_TOKENS = 1 << 16

# The publishers' generation_config.json, which GGUF files lack. Repetition penalties are left out: Qwen2.5's
# differ between its sizes, and they change greedy answers.
_PUBLISHED_SAMPLING: tuple[tuple[str, Mapping[str, float]], ...] = (
    # https://huggingface.co/Qwen/Qwen2.5-Coder-32B-Instruct
    (r"\bqwen2\.5-.*instruct", {"temperature": 0.7, "top_p": 0.8, "top_k": 20}),
    # https://huggingface.co/meta-llama/Llama-3.2-3B-Instruct
    (r"\bllama-3\.[123]-.*instruct", {"temperature": 0.6, "top_p": 0.9}),
    # https://huggingface.co/google/gemma-3-4b-it
    (r"\bgemma-3-.*-it", {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
)

# Small models with the tokenizer of a family, and drafts in one pass that were trained for it.
_PUBLISHED_DRAFTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\bqwen2\.5-coder", ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "amd/PARD-Qwen2.5-0.5B")),
    (r"\bqwen2\.5", ("Qwen/Qwen2.5-0.5B-Instruct", "amd/PARD-Qwen2.5-0.5B")),
    (r"\bqwen3-", ("Qwen/Qwen3-0.6B", "amd/PARD-Qwen3-0.6B")),
    (r"\bllama-3\.", ("meta-llama/Llama-3.2-1B-Instruct", "amd/PARD-Llama-3.2-1B")),
    (r"\bgemma-3-", ("google/gemma-3-270m-it",)),
    (r"\bsmollm2", ("HuggingFaceTB/SmolLM2-135M-Instruct",)),
)
_DRAFT_SHARE = 1 / 3  # of the target's weights, at most: of the published pair, whose draft gains


def write_recipe(
    target: str,
    draft: str | None,
    output: Path | None,
    quantization: str,
    max_seq_len: int | None,
    free: float,
    report: Callable[[str], None] = print_line,
    prompts: Path | None = None,
    name: str | None = None,
) -> Path:
    """Check a pair, download what is on the hub, and write its recipe.

    Args:
        target: Checkpoint of the target, as a recipe names it.
        draft: Checkpoint of the draft; None for tokens that are looked up alone.
        output: The YAML file; None: ``<name>.yaml`` in the working directory.
        quantization: ``auto``, ``int8`` or ``int4``, of the target; the draft's is ``auto`` then, or ``int4``
            where that is faster. ``none`` and ``checkpoint``: of both.
        max_seq_len: Tokens of prompt and answer together, at most; lowered to what both networks support.
            None: what they support, as far as a third of the free memory holds two such requests.
        free: Free memory, bytes.
        report: Called with the plan of the memory, and with the progress of downloads.
        prompts: File or folder of prompts; None for general ones.
        name: Name of the recipe and of the served model; None: a short one of the target's.

    Returns:
        The file. If it exists already, it is kept, with the commits of its checkpoints, its caches, its
        threads and its default sampling.

    Raises:
        CheckpointError, IncompatiblePairError: The two are not a pair that can be served.
        EngineBuildError: One needs attention of our own, and there is no compiler for it.
        RecipeError: Memory or disk do not hold it, or another recipe is in the file.
    """
    path = output or Path(f"{name or _name(target)}.yaml")
    named = {"target": target} if draft is None else {"target": target, "draft": draft}
    checkpoints = {role: _pinned(_as_written(path, role, each)) for role, each in named.items()}
    directories = {role: EngineRecipe(each).checkpoint_directory() for role, each in checkpoints.items()}
    opened = open_settings(directories["target"], max_seq_len or 1)
    configs = {"target": opened.config}
    if draft is not None:
        configs["draft"] = open_settings(directories["draft"], max_seq_len or 1, opened).config
        _check_draft_size(checkpoints, configs, report)
    most = min(config.max_position_embeddings for config in configs.values())
    length = min(max_seq_len or _LEAST_CONTEXT, most)
    document: dict[str, Any] = {
        "name": name or _name(target),
        "runtime": "embedded",
        **{role: _section(role, each, configs[role], quantization) for role, each in checkpoints.items()},
        "serving": {"max_seq_len": length},
    }
    if recommended := _recommended(target, directories["target"]):
        document["serving"]["default_sampling"] = dict(recommended)
    if prompts is not None:
        document["prompts"] = str(prompts.resolve())
    if _is_written(path, document, any_context=max_seq_len is None, any_name=name is None):
        _check_weights(load_recipe(path), report)
        report("the recipe exists and is kept")
        return path
    recipe = parse_recipe(document, path)
    if recipe.draft is not None and recipe.draft.quantization == "int4":
        short = " and a short output head" if recipe.draft.lm_head_rows else ""
        report(f"the draft has 4 bits{short}: faster, and no answer changes")
    if "draft" in configs and configs["draft"].mask_token_id is not None:
        report("the draft proposes several tokens in one pass")
    for role, config in configs.items():
        if config.own_attention_reason is not None:
            report(f"{role}: 'attention: draftproof' is set for {config.own_attention_reason}")
        if config.own_attention_reason is not None or config.experts is not None:
            check_operators()
    sources = check_settings(recipe)
    plan = plan_recipe(recipe, *sources, free)
    if max_seq_len is None and most > length:
        recipe = parse_recipe(_with_context(document, most, plan), path)
        plan = plan_recipe(recipe, *sources, free)
    report(f"context: {recipe.serving.max_seq_len:,} tokens; the models have positions for {most:,}")
    for line in plan.lines():
        report(line)
    if recommended:
        values = ", ".join(f"{name} {value:g}" for name, value in recommended.items())
        report(f"sampling of requests that send none: {values}, as the model's publisher recommends")
    check_prompts(recipe)
    engines = Need("the engines", ENGINES, plan.target.weights + plan.draft.weights)
    _check_weights(recipe, report, [engines])
    write_whole(path, yaml.safe_dump(document, sort_keys=False))
    return path


def _check_draft_size(
    checkpoints: Mapping[str, str], configs: Mapping[str, NetworkConfig], report: Callable[[str], None]
) -> None:
    target_size, draft_size = (sum(num_parameters(configs[role])) for role in ("target", "draft"))
    if draft_size > target_size and configs["draft"].experts is None:  # of which a step reads a few
        raise IncompatiblePairError(
            "the draft is larger than the target, and only a smaller one is faster: target "
            f"{checkpoints['target']}, {target_size / 1e9:.2f} billion parameters; draft "
            f"{checkpoints['draft']}, {draft_size / 1e9:.2f} billion",
            "name the large model first, then the small one: swap the two",
        )
    if draft_size >= target_size:
        report(
            f"warning: the draft has {draft_size / 1e9:.2f} billion parameters and the target "
            f"{target_size / 1e9:.2f} billion; only a smaller draft is faster, and the target is named first"
        )


def advice(recipe: Recipe) -> list[str]:
    """Say in sentences which draft would help a target."""
    directory = recipe.target.checkpoint_directory()
    most = _DRAFT_SHARE * sum(num_parameters(open_settings(directory, 1).config))
    name = _name(recipe.target.checkpoint)
    known = next((drafts for family, drafts in _PUBLISHED_DRAFTS if re.search(family, name)), ())
    others = [each for each in known if each.lower().partition("/")[2] != name]
    published = f", such as {' or '.join(others)}" if others else ""
    return [
        "What would help: name drafts behind the target, and the best of them is taken.",
        f"- a small model with the target's tokenizer, of at most {most / 1e9:.1f} billion "
        f"parameters{published}",
        "- a head of EAGLE-3 that was trained for this target: it costs least of all",
        "- prompts like yours (--prompts): where answers repeat their prompts, nothing else is needed",
    ]


def _check_weights(recipe: Recipe, report: Callable[[str], None], after: Sequence[Need] = ()) -> None:
    """Bring the weights, check that they fit together, and say what the quantization does to the target's."""
    _, target = check_recipe(fetch_checkpoints(recipe, report, after))
    report(weights_line(recipe.target, target))


def _name(target: str) -> str:
    """Return the name of a checkpoint without its quantization: ``qwen2.5-coder-1.5b-instruct``."""
    file = (HubCheckpoint.parse(target) or Path(target).resolve()).name.lower().removesuffix(GGUF_SUFFIX)
    name = re.sub(r"[-_.](gguf|i?q[2-8]_\w*|mxfp4|(bf|fp?)(16|32))\b.*", "", file)
    return re.sub(r"[^a-z0-9.-]+", "-", name).strip("-.") or "pair"


def _recommended(target: str, directory: Path) -> Mapping[str, float]:
    """Return the sampling that the publisher of a GGUF file recommends elsewhere; {} if that is not known."""
    on_hub = HubCheckpoint.parse(target)
    is_gguf = target.endswith(GGUF_SUFFIX) if on_hub is None else on_hub.file is not None
    if not is_gguf or read_sampling_defaults(directory) is not None:
        return {}
    return next((values for family, values in _PUBLISHED_SAMPLING if re.search(family, _name(target))), {})


def _as_written(path: Path, role: str, checkpoint: str) -> str:
    """Return a checkpoint of the default branch with the commit that an existing recipe has of it."""
    asked = HubCheckpoint.parse(checkpoint)
    if asked is None or asked.revision != DEFAULT_BRANCH or not path.is_file():
        return checkpoint
    section = _load(path).get(role)
    written = section.get("checkpoint") if isinstance(section, dict) else None
    known = HubCheckpoint.parse(written) if isinstance(written, str) else None
    return str(known) if known and known.repo == asked.repo and asked.means(known.file) else checkpoint


def _pinned(checkpoint: str) -> str:
    on_hub = HubCheckpoint.parse(checkpoint)
    return str(Path(checkpoint).resolve() if on_hub is None else opened(on_hub).checkpoint)


def _draft_quantization(config: NetworkConfig, quantization: str) -> str:
    """Return the quantization of a draft, whose target has ``quantization``.

    A draft decides nothing but speed. In 4 bits it is accepted a little less often, and is much faster where
    products of our own multiply (docs/decisions/models.md).
    """
    if quantization in _UNCHANGED:
        return quantization
    gains = (has_avx2_alone() and has_operators()) or config.quant_bits == 4
    return "int4" if gains else "auto"


def _section(role: str, checkpoint: str, config: NetworkConfig, quantization: str) -> dict[str, Any]:
    if role == "draft":
        quantization = _draft_quantization(config, quantization)
    heads = _TARGET_HEADS if role == "target" else _DRAFT_HEADS
    section = {
        "checkpoint": checkpoint,
        "quantization": quantization,
        "lm_head": heads.get(quantization, "checkpoint"),
        "num_threads": available_cores(),
    }
    is_long = config.head_rows is None and config.vocab_size > _DRAFT_TOKENS
    if role == "draft" and quantization == "int4" and is_long:
        section["lm_head_rows"] = _DRAFT_TOKENS
    if config.own_attention_reason is not None:
        section["attention"] = "draftproof"
    return section


def _with_context(document: dict[str, Any], most: int, plan: MemoryPlan) -> dict[str, Any]:
    """Give a recipe the longest context that its share of the memory holds twice, and caches for that."""
    bytes_per_token = (plan.target.block + plan.draft.block) / BLOCK_TOKENS
    length = most
    while length > _LEAST_CONTEXT and 2 * length * bytes_per_token > _CACHE_SHARE * plan.free:
        length = max(length // 2, _LEAST_CONTEXT)
    document["serving"]["max_seq_len"] = length
    num_blocks = max(plan.num_blocks["target"], 2 * -(-length // BLOCK_TOKENS) + 1)
    for role in {"target", "draft"} & document.keys():
        document[role]["kv_cache"] = {"num_blocks": num_blocks}
    return document


def _is_written(path: Path, document: dict[str, Any], *, any_context: bool, any_name: bool) -> bool:
    """Return whether a file holds this recipe, whatever its caches, threads and default sampling.

    Prompts that the file names are kept if the command names none, and its context and its name if they may
    be any.

    Raises:
        RecipeError: It holds another one.
    """
    if not path.is_file():
        return False
    written = _load(path)
    if isinstance(written.get("prompts"), str):  # from the file's folder, as in ``Recipe.prompts_path``
        written["prompts"] = str((path.parent / written["prompts"]).resolve())
        document = {"prompts": written["prompts"], **document}
    if any_context:
        document = {**document, "serving": written.get("serving")}
    if any_name:
        document = {**document, "name": written.get("name")}
    if not _is_same(written, document):
        raise RecipeError(
            f"{path} holds another recipe, of {path.stat().st_size} bytes, which is not overwritten",
            f"run draftproof serve --recipe {path}, or draftproof demo --recipe {path} --prompts FILE, edit "
            "it, name another file with --output, or remove it",
        )
    return True


def _load(path: Path) -> dict[str, Any]:
    document = load_yaml(path, RecipeError, "name another file with --output")
    return document if isinstance(document, dict) else {}


def _is_same(written: Any, document: dict[str, Any]) -> bool:
    def without_sizes(recipe: Any) -> Any:
        if not isinstance(recipe, dict):
            return recipe
        kept = ("kv_cache", "num_threads", "default_sampling")
        return {name: without_sizes(value) for name, value in recipe.items() if name not in kept}

    return bool(without_sizes(written) == without_sizes(document))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = argparse.ArgumentParser(prog="python -m build.own_pair", description="Write a pair's recipe.")
    parser.add_argument(
        "target",
        help="checkpoint of the target: a directory, a GGUF file, or hf://ORGANIZATION/NAME",
    )
    parser.add_argument("draft", nargs="?", help="checkpoint of the draft (default: no draft)")
    parser.add_argument("--name", help="name of the recipe and the served model (default: the target's)")
    parser.add_argument("--output", type=Path, help="recipe file (default: NAME.yaml)")
    parser.add_argument(
        "--quantization", choices=_QUANTIZATIONS, default="auto", help="(default: %(default)s)"
    )
    parser.add_argument("--prompts", type=Path, help="file or folder of prompts (default: general ones)")
    parser.add_argument("--max-seq-len", type=int, help="tokens (default: what models and memory allow)")
    options = vars(parser.parse_args(arguments))

    def work() -> dict[str, Any]:
        path = write_recipe(**options, free=available_bytes())
        return {"recipe": str(path), "advice": advice(load_recipe(path)) if options["draft"] is None else []}

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
