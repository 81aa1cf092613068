"""Puts the values of a recipe into the templates of ``model_repository/``.

The templates hold ``${name}`` where a recipe decides. Rendering is strict both ways: a name without a
value and a value without a use are errors, so a setting cannot be lost on its way to the server.

A model's ``config.pbtxt`` is for both runtimes, ``config.<runtime>.pbtxt`` for one; where both are there
they are joined, which in protobuf's text form adds fields. A model with neither is not of this runtime.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from build.recipe import REPOSITORY_ROOT
from build.whole import whole_directory
from pipelines.errors import RepositoryError

TEMPLATES = REPOSITORY_ROOT / "model_repository"

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_STRAY = re.compile(r"\$(?!\{)")
_PYTHON_BACKEND = re.compile(r'^backend: "python"$', re.MULTILINE)


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
    templates: Path,
    runtime: str,
    values: Mapping[str, str],
    destination: Path,
    beside: Sequence[Path] = (),
) -> list[str]:
    """Render every model of a runtime and put the result in place as a whole.

    Args:
        templates: Folder with one folder per model.
        runtime: ``embedded`` or ``tensorrt_llm``.
        values: See ``template_values``.
        destination: The repository that Triton reads; replaced if it is there.
        beside: Folders of models that are to be in it as they are.

    Returns:
        Names of the models that were rendered.

    Raises:
        RepositoryError: A template cannot be rendered, or a value is used by none.
    """
    models = [folder.name for folder in sorted(templates.glob("*/")) if config_templates(folder, runtime)]
    if not models:
        raise RepositoryError(
            "there is no model to render",
            values=str(templates),
            limit=f"<model>/config.pbtxt or <model>/config.{runtime}.pbtxt",
            remedy="run in a complete checkout",
        )
    with whole_directory(destination) as staging:
        unused = set(values)
        for name in models:
            unused -= render_model(templates / name, runtime, values, staging / name)
        for folder in beside:
            shutil.copytree(folder, staging / folder.name)
        if unused:
            raise RepositoryError(
                "no template uses some of the values",
                values=", ".join(sorted(unused)),
                limit="each value must reach a model",
                remedy="add it to a config.pbtxt or remove it from build/template_values.py",
            )
    return models


def render_model(template: Path, runtime: str, values: Mapping[str, str], destination: Path) -> set[str]:
    """Render one model; returns the names that it used.

    Args:
        template: Its folder.
        runtime: ``embedded`` or ``tensorrt_llm``.
        values: See ``template_values``.
        destination: Folder that does not exist.

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
    """The templates that make up a model's ``config.pbtxt``; none if it is not of this runtime."""
    named = (folder / "config.pbtxt", folder / f"config.{runtime}.pbtxt")
    return [path for path in named if path.is_file()]


def _copy_versions(folder: Path, destination: Path, *, with_code: bool) -> None:
    for version in sorted(path for path in folder.iterdir() if path.name.isdigit()):
        copied = destination / version.name
        copied.mkdir(parents=True)
        for source in sorted(version.glob("*.py")) if with_code else ():
            shutil.copyfile(source, copied / source.name)
