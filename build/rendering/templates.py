"""Render the templates in ``model_repository/`` with the values of a recipe.

Templates contain placeholders, ``${name}``. A placeholder without a value and a value without a placeholder
are errors, so that no setting is lost.

A model's ``config.pbtxt`` applies to both runtimes, ``config.<runtime>.pbtxt`` to one. If both exist they are
concatenated, which merges them in protobuf's text format. A model with neither does not exist in this
runtime.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from pipelines.atomic_file import whole_directory
from pipelines.errors import RepositoryError
from pipelines.places import CODE
from pipelines.wire.fields import OUTPUTS, TEXT_INPUTS, declared_inputs, declared_outputs

TEMPLATES = CODE / "model_repository"

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_STRAY = re.compile(r"\$(?!\{)")
_DECLARED = re.compile(r"^@(inputs|outputs|input_maps|output_maps) (\w+)$", re.MULTILINE)
_PYTHON_BACKEND = re.compile(r'^backend: "python"$', re.MULTILINE)


def render_text(text: str, values: Mapping[str, str], origin: str) -> tuple[str, set[str]]:
    """Render one template; a line such as ``@inputs text`` stands for declarations of tensors.

    Args:
        text: The template.
        values: Values by name.
        origin: Name of the template, for error messages.

    Returns:
        The rendered text, and the names that it used.

    Raises:
        RepositoryError: A placeholder has no value, a dollar sign does not begin a placeholder, or a value
            has characters that cannot be quoted.
    """
    text = _DECLARED.sub(_declared, text)
    stray = _STRAY.search(text)
    if stray:
        line = text.count("\n", 0, stray.start()) + 1
        raise RepositoryError(
            f"{origin}:{line} has a dollar sign without a name in braces: "
            f"{text.splitlines()[line - 1].strip()}",
            "write placeholders as ${name}",
        )
    used: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            near = difflib.get_close_matches(name, list(values), n=1)
            raise RepositoryError(
                f"{origin} has an unknown placeholder ${{{name}}}; known: {', '.join(sorted(values))}",
                f"did you mean ${{{near[0]}}}?" if near else "fix the template",
            )
        value = values[name]
        if any(character in value for character in '"\\\n$'):
            raise RepositoryError(
                f"{name}={value!r} cannot be quoted in {origin}: it has quotes, backslashes, dollar signs or "
                "line breaks",
                "rename the folder or change the recipe",
            )
        used.add(name)
        return value

    return _PLACEHOLDER.sub(put, text), used


def _declared(match: re.Match[str]) -> str:
    """Return the tensors of a model, which ``pipelines/wire`` declares."""
    if match[1] == "input_maps":
        passed_on = [each for each in TEXT_INPUTS.values() if each.passed_on]
        lines = [_mapped("input", each.engine, each.name) for each in passed_on]
    elif match[1] == "output_maps":
        lines = [
            _mapped("output", name, name) for name, each in OUTPUTS.items() if each.models in ("all", "draft")
        ]
    else:
        lines = (declared_inputs if match[1] == "inputs" else declared_outputs)(match[2])
    return "\n".join(lines)


def _mapped(kind: str, key: str, value: str) -> str:
    return f'    {kind}_map {{ key: "{key}" value: "{value}" }}'


def render_repository(
    templates: Path,
    runtime: str,
    values: Mapping[str, str],
    destination: Path,
) -> list[str]:
    """Render all models of a runtime and replace the repository atomically.

    Args:
        templates: Folder with one folder per model.
        runtime: ``embedded`` or ``tensorrt_llm``.
        values: See ``RenderedPair.values``.
        destination: The repository that Triton reads; replaced if it exists.

    Returns:
        Names of the rendered models.

    Raises:
        RepositoryError: A template cannot be rendered, or a value is used by no template.
    """
    models = [folder.name for folder in sorted(templates.glob("*/")) if config_templates(folder, runtime)]
    if not models:
        raise RepositoryError(
            f"{templates} has no <model>/config.pbtxt or config.{runtime}.pbtxt", "use a complete checkout"
        )
    with whole_directory(destination) as staging:
        unused = set(values)
        for name in models:
            unused -= render_model(templates / name, runtime, values, staging / name)
        if unused:
            raise RepositoryError(
                f"values are used by no template: {', '.join(sorted(unused))}",
                "use each in a config.pbtxt, or remove it from build/rendering/rendered_pair.py",
            )
    return models


def render_model(template: Path, runtime: str, values: Mapping[str, str], destination: Path) -> set[str]:
    """Render one model and return the names that it used.

    Args:
        template: Folder of the model's templates.
        runtime: ``embedded`` or ``tensorrt_llm``.
        values: See ``RenderedPair.values``.
        destination: Folder to create.

    Raises:
        RepositoryError: See ``render_text``.
    """
    parts, used = [], set()
    for config in config_templates(template, runtime):
        origin = f"{template.name}/{config.name}"
        text, names = render_text(config.read_text(encoding="utf-8"), values, origin)
        parts.append(text)
        used |= names
    rendered = "\n".join(parts)
    _copy_versions(template, destination, with_code=bool(_PYTHON_BACKEND.search(rendered)))
    (destination / "config.pbtxt").write_text(rendered, encoding="utf-8")
    return used


def config_templates(folder: Path, runtime: str) -> list[Path]:
    """Return the templates of a model's ``config.pbtxt``; none if this runtime does not have the model."""
    named = (folder / "config.pbtxt", folder / f"config.{runtime}.pbtxt")
    return [path for path in named if path.is_file()]


def _copy_versions(folder: Path, destination: Path, *, with_code: bool) -> None:
    for version in sorted(path for path in folder.iterdir() if path.name.isdigit()):
        copied = destination / version.name
        copied.mkdir(parents=True)
        for source in sorted(version.glob("*.py")) if with_code else ():
            shutil.copyfile(source, copied / source.name)
