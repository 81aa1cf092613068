"""Rehearse a recipe with random weights: ``python -m benchmarks.rehearsal --recipe smollm2-1-7b-cpu``.

The program writes two Hugging Face directories with the real shapes of the recipe's models, and lets
``draftproof try`` build, serve and compare them until two answers are verified. Then it times steps of both
engines, and answers beside the target alone while the draft is right at stated rates
(``benchmarks/rehearsal/steering.py``). All that it wrote is removed, except for the result, which replaces
the entry of the same pair and quantization in a file. The last line of standard output is that entry, JSON.
Exit codes: 0 success; 1 the pair failed; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rehearsal.checkpoints import write_checkpoint
from benchmarks.rehearsal.first_answer import try_pair
from benchmarks.rehearsal.loaded_pair import LoadedPair
from benchmarks.rehearsal.published import MODELS
from benchmarks.rehearsal.speed import LIMITS, RATES, time_answers, time_steps
from build.hub.checkpoint_id import HubCheckpoint
from build.own_pair import write_recipe
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from pipelines.atomic_file import remove_directory, write_whole
from pipelines.available_resources import available_bytes
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.errors import RecipeError
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

MAX_SEQ_LEN = 1024
NUM_REQUESTS = 2
"""The rehearsed server's caches hold so many requests of ``MAX_SEQ_LEN`` tokens, whatever memory is free."""

NUM_VERIFIED = 2
NUM_STEP_TURNS = 7
NUM_ANSWER_TURNS = 5
NUM_TOKENS = 48
RESULTS = REPOSITORY_ROOT / "docs" / "results" / "rehearsals.json"


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def published_ids(recipe: Recipe) -> dict[str, str]:
    """Return the models of a recipe by role, as ids of the hub.

    Raises:
        RecipeError: The recipe names another model than those in ``published.py``.
    """
    named = {role: HubCheckpoint.parse(getattr(recipe, role).checkpoint) for role in ("target", "draft")}
    ids = {role: each.repo for role, each in named.items() if each is not None}
    if not set(ids.values()) <= set(MODELS) or len(ids) < len(named):
        raise RecipeError(
            "the shapes of this recipe's models are not known",
            values=f"recipe {recipe.name}: {', '.join(map(str, named.values()))}",
            limit=f"models of benchmarks/rehearsal/published.py: {', '.join(MODELS)}",
            remedy="choose one of the recipes for CPUs, or add the model's settings there",
        )
    return ids


@contextmanager
def _checkpoints(models: dict[str, str], parent: Path) -> Iterator[dict[str, Path]]:
    """Yield directories with random weights, by role, which are removed at the end."""
    words = {role: MODELS[model]["vocab_size"] for role, model in models.items()}
    # Made-up tokenizers begin alike, so the target never chooses a token that the draft lacks.
    num_used = min(words.values())
    if len({model.partition("/")[0] for model in models.values()}) == 1:  # a family has one tokenizer
        words = dict.fromkeys(words, num_used)
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=parent) as folder:
        directories = {}
        for seed, (role, model) in enumerate(models.items()):
            directories[role] = Path(folder) / model.rpartition("/")[2]
            say(f"{model}: writing random weights")
            write_checkpoint(directories[role], MODELS[model], seed, words[role], num_used)
        yield directories


def _rehearsed_recipe(directories: dict[str, Path], quantization: str) -> Recipe:
    """Write the recipe of two directories, as ``draftproof try`` does, with small caches."""
    target, draft = directories["target"], directories["draft"]
    path = target.parent / "pair.yaml"
    write_recipe(str(target), str(draft), path, quantization, MAX_SEQ_LEN, free=available_bytes())
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for role in directories:
        document[role]["kv_cache"] = {"num_blocks": NUM_REQUESTS * MAX_SEQ_LEN // 32 + 1}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return load_recipe(path)


def rehearse(name: str, quantization: str | None, parent: Path) -> dict[str, Any]:
    """Rehearse a recipe.

    Args:
        name: The recipe.
        quantization: Quantization of the target; None for the recipe's.
        parent: Folder for the checkpoints.

    Raises:
        RecipeError: See ``published_ids``.
        EngineFailedError: An answer was not the target's own.
    """
    recipe = load_recipe(name)
    models = published_ids(recipe)
    quantization = quantization or recipe.target.quantization
    with _checkpoints(models, parent) as directories:
        own = _rehearsed_recipe(directories, quantization)
        arguments = [*map(str, directories.values()), "--output", str(own.path)]
        arguments += ["--quantization", quantization, "--max-seq-len", str(MAX_SEQ_LEN)]
        try:
            first = try_pair(arguments, NUM_VERIFIED, say)
            engines = {
                role: next((REPOSITORY_ROOT / "engines" / own.name).glob(f"{role}-*")) for role in models
            }
            sizes = {role: (path / "engine.bin").stat().st_size / 1e6 for role, path in engines.items()}
            pair = LoadedPair(
                engines["draft"], engines["target"], directories["target"].parent, LIMITS, RATES
            )
            steps = time_steps(pair, NUM_STEP_TURNS)
            say(json.dumps(steps))
            pair.start()
            answers = time_answers(pair, NUM_ANSWER_TURNS, NUM_TOKENS, say)
            pair.stop()
            described = engine_conditions(engines)
        finally:
            for folder in ("engines", ".run"):
                remove_directory(REPOSITORY_ROOT / folder / own.name)
    return {
        "models": models,
        "quantization": {"target": quantization, "draft": own.draft.quantization},
        "engines": described,
        "engine_mb": sizes,
        "cache_tokens": NUM_REQUESTS * MAX_SEQ_LEN,
        "try": first,
        "step_ms": steps,
        "answers": answers,
    }


def _rehearse_and_record(options: argparse.Namespace, command_line: list[str]) -> int:
    before = conditions("benchmarks.rehearsal", command_line)
    with stopped_by_signals():
        entry = {**rehearse(options.recipe, options.quantization, options.folder), "conditions": before}
    known = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    known[f"{options.recipe}-{entry['quantization']['target']}"] = entry
    write_whole(options.output, json.dumps(dict(sorted(known.items())), indent=4) + "\n")
    print(json.dumps(entry))
    return EXIT_PASS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    parser.add_argument("--recipe", required=True, help="a recipe for CPUs, such as smollm2-1-7b-cpu")
    parser.add_argument(
        "--quantization", choices=("int8", "int4"), help="of the target (default: the recipe's)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=REPOSITORY_ROOT / ".run",
        help="where to write the checkpoints, two bytes per parameter (default: .run)",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of results (%(default)s)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _rehearse_and_record(options, command_line))


if __name__ == "__main__":
    sys.exit(main())
