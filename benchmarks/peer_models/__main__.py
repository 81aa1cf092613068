"""Convert a recipe's pair for other engines: ``python -m benchmarks.peer_models --recipe demo-large``.

The weights are those of the recipe's engines, including growth. Each role is written as ``openvino``,
quantized as the engine, the graph that OpenVINO GenAI reads. A recipe that names a GGUF file has ``gguf``
too, the file itself. ``models.json`` records the settings of the engines. It is written last, so a folder
that contains it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov

from benchmarks.peer_models.stateful_graph import build_stateful_graph
from build.command_line import print_line, recipe_parser, run_command
from build.engines import build_engines
from build.hugging_face.write import write_settings
from build.networks.growth import grow
from build.networks.weight_only import apply_quantization
from build.preflight import read_source
from build.quantization.quantized_checkpoint import checkpoint_for
from build.recipe import GGUF_SUFFIX, EngineRecipe, Recipe, load_recipe
from pipelines.manifest import sha256_file, sha256_json
from pipelines.places import ENGINES, RUN, located

_ROLES = ("target", "draft")


def _description(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "engine.json").read_text(encoding="utf-8"))
    return document


def _write_role(
    directory: Path, engine: EngineRecipe, checkpoint: Path, max_seq_len: int, end_ids: list[int]
) -> dict[str, str]:
    """Write a network, and return format -> its place, relative to ``directory``'s parent."""
    network = read_source(engine, checkpoint, max_seq_len).network.read()
    if engine.growth is not None:
        network = grow(network, engine.growth)
    quantized = apply_quantization(network, engine.rounding, engine.lm_head)
    folder = directory / "openvino"
    folder.mkdir(parents=True)
    # compress_to_fp16 would round scales and norms.
    ov.save_model(build_stateful_graph(quantized), folder / "openvino_model.xml", compress_to_fp16=False)
    write_settings(folder, network.config, checkpoint / "tokenizer.json", end_ids)
    written = {"openvino": f"{directory.name}/{folder.name}"}
    if engine.checkpoint.endswith(GGUF_SUFFIX):
        written["gguf"] = str(located(engine.checkpoint))  # the file itself
    return written


def build_peer_models(
    recipe: Recipe,
    output: Path,
    engines: Path = ENGINES,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Convert a recipe's pair for other engines, unless that is done already.

    Args:
        recipe: The pair; its engines are built first if necessary.
        output: Folder for ``target/``, ``draft/`` and ``models.json``; its content is deleted first.
        engines: Folder that holds the engines.
        report: Called with one line per stage.

    Returns:
        The content of ``models.json``: ``fingerprint``; ``recipe``; ``end_ids``; ``num_threads``;
        ``compile_properties`` of the target's engine; ``max_seq_len``; ``max_num_tokens`` of a step;
        ``max_batch_size``; and for each role its formats and their folders in ``output``.

    Raises:
        DraftproofError: See ``build_engines``.
    """
    built = build_engines(recipe, engines, report)
    description = _description(Path(built["target"]))
    sources = {path.name: sha256_file(path) for path in sorted(Path(__file__).parent.glob("*.py"))}
    names = [Path(built[role]).name for role in _ROLES]
    serving = dataclasses.asdict(recipe.serving)
    fingerprint = sha256_json({"engines": names, "sources": sources, "serving": serving})
    index = output / "models.json"
    if index.is_file():
        document: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        if document["fingerprint"] == fingerprint:
            report(f"{output} is up to date")
            return document
    shutil.rmtree(output, ignore_errors=True)
    document = {
        "fingerprint": fingerprint,
        "recipe": recipe.name,
        "end_ids": description["end_ids"],
        "num_threads": description["num_threads"],
        "compile_properties": description["compile_properties"],
        **{key: serving[key] for key in ("max_seq_len", "max_num_tokens", "max_batch_size")},
    }
    for role in _ROLES:
        report(f"{role}: writing {output / role}")
        checkpoint = checkpoint_for(recipe, role, engines)
        document[role] = _write_role(
            output / role,
            getattr(recipe, role),
            checkpoint,
            recipe.serving.max_seq_len,
            document["end_ids"],
        )
    index.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("python -m benchmarks.peer_models", "Convert a recipe's pair for other engines.")
    parser.add_argument("--output", type=Path, default=None, help="folder (default: .run/peers/<name>)")
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        recipe = load_recipe(options.recipe)
        output = options.output or RUN / "peers" / recipe.name
        return build_peer_models(recipe, output.resolve(), report=print_line)

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
