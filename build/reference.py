"""Compute with transformers what a recipe's target should have answered: ``python -m build.reference``.

``draftproof verify --reference`` runs this program. Weights are those of the recipe's checkpoint, in float32,
before any quantization of ours. What it stores in integers or in GGUF's blocks is dequantized as the engines
read it; which weight is which, and all that is computed, is the code of transformers.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.settings import read_json
from build.checkpoints.tensor_file import Float32Array
from build.command_line import add_runtime, print_line, recipe_parser, run_command
from build.hub.pinned import pin_recipe
from build.hugging_face.config import family_of, read_config, read_form
from build.hugging_face.families import ExpertNames
from build.hugging_face.layers import text_prefix
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.hugging_face.write import write_hugging_face
from build.networks.source import open_network
from build.recipe import EngineRecipe, Recipe, load_recipe
from pipelines.errors import CheckpointError


def load_reference(engine: EngineRecipe) -> Any:
    """Load the checkpoint of an engine as a model of transformers, float32 on the CPU.

    A network that the recipe grows is loaded as it was: growth does not change its function.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
    """
    directory = engine.checkpoint_directory()
    if "architecture" not in read_json(directory / "config.json"):
        return _loaded(directory)
    network = open_network(directory).read()
    network = replace(network, config=replace(network.config, dtype="float32"))  # nothing is rounded
    with tempfile.TemporaryDirectory() as written:
        write_hugging_face(Path(written), network, directory / "tokenizer.json", (0,))
        return _loaded(Path(written))


def _loaded(directory: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = directory / "config.json"
    raw = read_json(path)
    form = read_form(raw, path)
    config = AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config()
    options = {"config": config, "dtype": torch.float32, "attn_implementation": "eager"}
    if form is None and "text_config" not in raw:
        return AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, **options).eval()
    # Its libraries are not installed. A model that sees images may have it beside the text model's settings.
    # Of such a model, from_pretrained would find no weight for the text model, and take random ones.
    vars(config).pop("quantization_config", None)
    model, weights = AutoModelForCausalLM.from_config(**options).eval(), Weights(directory)
    prefix, experts = text_prefix(weights), family_of(raw, path).experts
    for own_name, parameter in model.named_parameters():
        name, shape = re.sub(r"^model\.", prefix, own_name), tuple(parameter.shape)
        stored = [(name, shape)]
        if experts is not None and not experts.are_stacked and name not in weights:
            stored = _of_experts(name, shape, experts)
        values = np.concatenate([_values(weights, form, *each) for each in stored])
        parameter.data = torch.from_numpy(values.reshape(shape))
    return model


def _of_experts(name: str, shape: tuple[int, ...], experts: ExpertNames) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the tensors that transformers stacks in a parameter of a mixture."""
    name = name.replace(".mlp.", f".{experts.block}.")
    block, _, kind = name.rpartition(".")
    if not block.endswith(".experts"):
        return [(name, shape)]
    projections = ("fc", "gate") if kind == "gate_up_proj" else ("proj",)
    return [
        (f"{block}.{index}.{experts.projections[each]}.weight", (shape[1] // len(projections), shape[2]))
        for index in range(shape[0])
        for each in projections
    ]


def _values(weights: Weights, form: Form | None, name: str, shape: tuple[int, ...]) -> Float32Array:
    if form is None or weights.has_floats(name):
        return weights.take(name, shape).to_float32()
    if form.read_experts is not None:  # transformers has [experts, inputs, outputs]
        count, inputs, outputs = shape
        values = form.read_experts(weights, name, count, outputs, inputs)().to_float32()
        return values.reshape(count, outputs, inputs).swapaxes(1, 2)
    outputs, inputs = shape
    return form.read(weights, name.removesuffix(".weight"), outputs, inputs)().to_float32()


def compute(recipe: Recipe, texts: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute log probabilities of answers.

    Args:
        recipe: The pair; its target answered.
        texts: For each answer its ``prompt``, its ``answer`` and, for each token of that, other tokens that
            are ``asked`` for.

    Returns:
        ``is_rounded``: whether the engine rounds numbers that the checkpoint has; ``rows``: for each token of
        all answers, natural log probabilities: of the likeliest one, of its own, and of the others.

    Raises:
        CheckpointError: There is no torch, or the checkpoint cannot be used.
    """
    try:
        import torch

        model = load_reference(recipe.target)
    except ImportError as error:
        raise CheckpointError(
            f"the reference cannot be computed without torch and transformers: {error}",
            "run 'make modelopt', which installs both, and then --reference again",
        ) from error
    rows: list[list[float]] = []
    for text in texts:
        count, ids = len(text["answer"]), torch.tensor([text["prompt"] + text["answer"]])
        with torch.no_grad():
            logits = model(ids, use_cache=False, logits_to_keep=count + 1).logits[0, :-1]
        for row, own, asked in zip(
            torch.log_softmax(logits.double(), dim=-1), text["answer"], text["asked"], strict=True
        ):
            rows.append([float(row.max()), *row[[own, *asked]].tolist()])
    print_line(f"reference: {len(texts)} answers computed with transformers")
    return {"is_rounded": _is_rounded(recipe), "rows": rows}


def _is_rounded(recipe: Recipe) -> bool:
    target = recipe.target
    directory = target.checkpoint_directory()
    stored = read_form(read_config(directory), directory / "config.json")
    keeps = target.quantization == "none" or (target.quantization == "checkpoint" and not stored)
    cache = target.kv_cache.dtype if recipe.runtime == "embedded" else target.tensorrt_llm.kv_cache_dtype
    return not keeps or target.lm_head != "checkpoint" or cache in ("int8", "fp8")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("python -m build.reference", "Compute log probabilities with transformers.")
    add_runtime(parser)
    parser.add_argument("--texts", type=Path, required=True, help="file with the answers, JSON")
    options = parser.parse_args(arguments)
    recipe = pin_recipe(load_recipe(options.recipe, options.runtime))
    return run_command(lambda: compute(recipe, json.loads(options.texts.read_text())))


if __name__ == "__main__":
    sys.exit(main())
