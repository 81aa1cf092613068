"""Render the templates in ``model_repository/`` with the values of a recipe.

Templates contain placeholders, ``${name}``. One without a value is an error.

A model's ``config.pbtxt`` applies to both runtimes, ``config.<runtime>.pbtxt`` to one. If both exist they are
concatenated, which merges them in protobuf's text format. A model with neither does not exist in this
runtime.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template

from pipelines.atomic_file import whole_directory
from pipelines.errors import RepositoryError
from pipelines.places import CODE
from pipelines.wire.fields import OUTPUTS, TEXT_INPUTS, declared_inputs, declared_outputs

TEMPLATES = CODE / "model_repository"

_DECLARED = re.compile(r"^@(inputs|outputs|input_maps|output_maps) (\w+)$", re.MULTILINE)
_PYTHON_BACKEND = re.compile(r'^backend: "python"$', re.MULTILINE)


def render_text(text: str, values: Mapping[str, str], origin: str) -> str:
    """Render one template; a line such as ``@inputs text`` stands for declarations of tensors.

    Args:
        text: The template.
        values: Values by name.
        origin: Name of the template, for error messages.

    Raises:
        RepositoryError: A placeholder has no value, or a value has characters that cannot be quoted.
    """
    for name, value in values.items():
        if any(character in value for character in '"\\\n'):
            raise RepositoryError(
                f"{name}={value!r} cannot be quoted in {origin}: it has quotes, backslashes or line breaks",
                "rename the folder or change the recipe",
            )
    try:
        return Template(_DECLARED.sub(_declared, text)).substitute(values)
    except (KeyError, ValueError) as error:
        raise RepositoryError(
            f"{origin} has a placeholder without a value: {error}; known: {', '.join(sorted(values))}",
            "write placeholders as ${name}",
        ) from None


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
        RepositoryError: A template cannot be rendered.
    """
    models = [folder.name for folder in sorted(templates.glob("*/")) if config_templates(folder, runtime)]
    if not models:
        raise RepositoryError(
            f"{templates} has no <model>/config.pbtxt or config.{runtime}.pbtxt", "use a complete checkout"
        )
    with whole_directory(destination) as staging:
        for name in models:
            _render_model(templates / name, runtime, values, staging / name)
    return models


def _render_model(template: Path, runtime: str, values: Mapping[str, str], destination: Path) -> None:
    rendered = "\n".join(
        render_text(config.read_text(encoding="utf-8"), values, f"{template.name}/{config.name}")
        for config in config_templates(template, runtime)
    )
    _copy_versions(template, destination, with_code=bool(_PYTHON_BACKEND.search(rendered)))
    (destination / "config.pbtxt").write_text(rendered, encoding="utf-8")


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
