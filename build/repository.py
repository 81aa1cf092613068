"""Renders ``model_repository/`` for a recipe: ``python -m build.repository --recipe demo``.

The templates hold ``${name}`` where a recipe decides. Rendering is strict both ways: a name without a
value and a value without a use are errors, so a setting cannot be lost on its way to the server. The
result is ``.run/<recipe>/model_repository/``, replaced as a whole.

A model's ``config.pbtxt`` is for both runtimes, ``config.<runtime>.pbtxt`` for one; where both are there
they are joined, which in protobuf's text form adds fields. A model with neither is not of this runtime.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from build.command_line import add_runtime, print_line, recipe_parser, run_command
from build.engines import build_engines
from build.launch import write_launch_file
from build.manifest import verify_manifest
from build.memory_plan import MemoryPlan, plan_memory
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.tensorrt_llm.pair import read_pair
from build.tensorrt_llm_repository import engine_values
from build.whole import whole_directory
from pipelines.errors import EngineBuildError, RepositoryError

TEMPLATES = REPOSITORY_ROOT / "model_repository"
ENGINES = REPOSITORY_ROOT / "engines"
RUN = REPOSITORY_ROOT / ".run"

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_STRAY = re.compile(r"\$(?!\{)")
_PYTHON_BACKEND = re.compile(r'^backend: "python"$', re.MULTILINE)


def calibration_file(draft_engine: Path, target_engine: Path) -> Path:
    """Where the measurements of a pair lie; ``python -m pipelines.calibration`` makes them."""
    return target_engine.parent / f"calibration-{draft_engine.name}-{target_engine.name}.json"


def template_values(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run: Path,
    memory: MemoryPlan | None = None,
) -> dict[str, str]:
    """What the templates of the recipe's runtime may name, and must: every value has to be used.

    Args:
        recipe: Limits of the server.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target; preprocessing uses its tokenizer.
        run: Gets the sockets over which models of the server call each other.
        memory: How the engines share their GPUs; needed on TensorRT-LLM alone.

    Raises:
        DraftproofError: As ``tensorrt_llm_repository.engine_values``.
    """
    serving = recipe.serving
    # Relative to the working directory of the server: the path of a socket has at most 107 bytes.
    sockets = run.relative_to(REPOSITORY_ROOT) if run.is_relative_to(REPOSITORY_ROOT) else run
    shared = {
        "draft_engine_dir": str(draft_engine),
        "target_engine_dir": str(target_engine),
        "tokenizer_file": str(target_engine / "tokenizer.json"),
        "target_socket": str(sockets / "target.sock"),
        "speculative_socket": str(sockets / "speculative.sock"),
        "router_socket": str(sockets / "router.sock"),
        "max_batch_size": str(serving.max_batch_size),
        "max_seq_len": str(serving.max_seq_len),
        "max_queue_size": str(serving.max_queue_size),
        "max_draft_len": str(serving.max_draft_len),
        "num_draft_tokens": "adaptive" if serving.num_draft_tokens is None else str(serving.num_draft_tokens),
        "draft_length_file": str(run / "draft_length.json"),
        "arms_file": str(run / "arms.json"),
        "observations_file": str(run / "observations.jsonl"),
    }
    if recipe.runtime == "tensorrt_llm":
        assert memory is not None
        own = engine_values(recipe, draft_engine, target_engine, memory)
        return {**shared, **own, "engine_access": "tensorrt_llm"}
    return {
        **shared,
        "engine_access": serving.engine_access,
        "draft_num_kv_blocks": str(recipe.draft.kv_cache.num_blocks),
        "target_num_kv_blocks": str(recipe.target.kv_cache.num_blocks),
        "max_num_tokens": str(serving.max_num_tokens),
        "calibration_file": str(calibration_file(draft_engine, target_engine)),
    }


def render_text(text: str, values: Mapping[str, str], origin: str) -> tuple[str, set[str]]:
    """Put the values into one template.

    Args:
        text: The template.
        values: Value of each name.
        origin: Names the template in errors.

    Returns:
        The rendered text and the names that it used.

    Raises:
        RepositoryError: A name has no value, a dollar sign stands alone, or a value cannot stand in
            a quoted text.
    """
    stray = _STRAY.search(text)
    if stray:
        line = text.count("\n", 0, stray.start()) + 1
        raise RepositoryError(
            f"{origin}:{line} has a dollar sign that begins no ${{name}}",
            values=text.splitlines()[line - 1].strip(),
            limit="placeholders are written ${name}",
            remedy="mend the template",
        )
    used: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1)
            raise RepositoryError(
                f"{origin} names a value that there is not",
                values=f"${{{name}}}",
                limit=f"known: {', '.join(sorted(values))}",
                remedy=f"did you mean ${{{near[0]}}}?" if near else "mend the template",
            )
        value = values[name]
        if any(character in value for character in '"\\\n$'):
            raise RepositoryError(
                f"a value cannot be written into {origin}",
                values=f"{name}={value!r}",
                limit="no quotes, backslashes, dollar signs or line breaks",
                remedy="rename the folder or change the recipe",
            )
        used.add(name)
        return value

    return _PLACEHOLDER.sub(put, text), used


def render_repository(
    templates: Path, runtime: str, values: Mapping[str, str], destination: Path
) -> list[str]:
    """Render every model of a runtime and put the result in place as a whole.

    Args:
        templates: Folder with one folder per model.
        runtime: ``embedded`` or ``tensorrt_llm``.
        values: See ``template_values``.
        destination: The repository that Triton reads; replaced if it is there.

    Returns:
        Names of the models.

    Raises:
        RepositoryError: A template cannot be rendered, or a value is used by none.
    """
    models = {folder.name: config_templates(folder, runtime) for folder in sorted(templates.glob("*/"))}
    models = {name: configs for name, configs in models.items() if configs}
    if not models:
        raise RepositoryError(
            "there is no model to render",
            values=str(templates),
            limit=f"<model>/config.pbtxt or <model>/config.{runtime}.pbtxt",
            remedy="run in a complete checkout",
        )
    with whole_directory(destination) as staging:
        unused = set(values)
        for name, configs in models.items():
            parts = []
            for config in configs:
                text, used = render_text(config.read_text(encoding="utf-8"), values, f"{name}/{config.name}")
                unused -= used
                parts.append(text)
            rendered = "\n".join(parts)
            _copy_versions(templates / name, staging / name, with_code=bool(_PYTHON_BACKEND.search(rendered)))
            (staging / name / "config.pbtxt").write_text(rendered, encoding="utf-8")
        if unused:
            raise RepositoryError(
                "no template uses some of the values",
                values=", ".join(sorted(unused)),
                limit="each value must reach a model",
                remedy="add it to a config.pbtxt or remove it from build/repository.py",
            )
    return list(models)


def config_templates(folder: Path, runtime: str) -> list[Path]:
    """The templates that make up a model's ``config.pbtxt``; none if it is not of this runtime."""
    named = (folder / "config.pbtxt", folder / f"config.{runtime}.pbtxt")
    return [path for path in named if path.is_file()]


def _copy_versions(folder: Path, destination: Path, *, with_code: bool) -> None:
    for version in sorted(path for path in folder.iterdir() if path.name.isdigit()):
        copied = destination / version.name
        copied.mkdir(parents=True)
        for source in sorted(version.glob("*.py")) if with_code else ():
            shutil.copyfile(source, copied / source.name)


def render_recipe(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run: Path = RUN,
    memory: MemoryPlan | None = None,
) -> Path:
    """Render the repository of a recipe, whose engines are first checked against their hashes.

    Args:
        recipe: Names the runtime.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target.
        run: Parent of the recipe's run directory, which also gets ``launch.json``.
        memory: How the engines share their GPUs; needed on TensorRT-LLM alone.

    Returns:
        ``<run>/<recipe>/model_repository``.

    Raises:
        EngineLoadError: A file of an engine is missing or was changed since it was built.
        RepositoryError: See ``render_repository``.
    """
    for engine in (draft_engine, target_engine):
        verify_manifest(engine)
    destination = run / recipe.name / "model_repository"
    values = template_values(
        recipe, draft_engine.resolve(), target_engine.resolve(), destination.parent.resolve(), memory
    )
    render_repository(TEMPLATES, recipe.runtime, values, destination)
    write_launch_file(recipe, destination.parent)
    return destination


def measure_pair(recipe: Recipe, draft_engine: Path, target_engine: Path) -> None:
    """Have the pair measured, unless it is; in a process of its own, whose memory goes with it.

    Raises:
        EngineBuildError: It could not be.
    """
    serving = recipe.serving
    max_rows = min(serving.max_batch_size * (serving.max_draft_len + 1), serving.max_num_tokens)
    output = calibration_file(draft_engine, target_engine)
    command = [sys.executable, "-m", "pipelines.calibration", "--output", str(output)]
    command += ["--draft", str(draft_engine), "--target", str(target_engine), "--max-rows", str(max_rows)]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise EngineBuildError(
            "the pair could not be measured",
            values=done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}",
            limit="both engines must run on this machine",
            remedy="run 'make doctor'; the engines themselves are built",
        )


def _build_and_render(options: argparse.Namespace) -> dict[str, str]:
    recipe = load_recipe(options.recipe, options.runtime)
    engines = build_engines(recipe, ENGINES, print_line)
    draft, target = Path(engines["draft"]), Path(engines["target"])
    memory = None
    if recipe.runtime == "embedded":
        measure_pair(recipe, draft, target)
    else:
        memory = plan_memory(read_pair(recipe, ENGINES))
    destination = render_recipe(recipe, draft, target, memory=memory)
    return {"model_repository": str(destination), "recipe": recipe.name}


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.repository", "Render the model repository of a recipe.")
    add_runtime(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: _build_and_render(options))


if __name__ == "__main__":
    sys.exit(main())
