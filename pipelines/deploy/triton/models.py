"""The models of a repository: which a server loads at its start, and which cannot answer without others."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.errors import RepositoryError

ROUTER = "router"
"""Model that answers: it chooses the pair, and another one if that fails."""

_PARAMETER = re.compile(r'key: "(\w+)" value: { string_value: "([^"]*)" }')
_ENSEMBLE = re.compile(r'^platform: "ensemble"$', re.MULTILINE)
_STEP = re.compile(r'^\s*model_name: "([^"]*)"$', re.MULTILINE)


def rendered_parameters(run_directory: Path, model: str) -> dict[str, str]:
    """Return the text of each parameter of a model by name.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.
        model: Name of the model.

    Raises:
        RepositoryError: There is no rendered repository.
    """
    path = run_directory / "model_repository" / model / "config.pbtxt"
    try:
        return dict(_PARAMETER.findall(path.read_text(encoding="utf-8")))
    except OSError:
        raise RepositoryError(
            f"there is no rendered repository with {path}", "run 'draftproof serve' first"
        ) from None


def models_at_start(repository: Path) -> tuple[str, ...]:
    """Return the names of the models of a repository."""
    return tuple(sorted(path.parent.name for path in repository.glob("*/config.pbtxt")))


def loading_options(repository: Path) -> list[str]:
    """Return the options of ``tritonserver`` for loading and unloading models while it runs.

    With strict readiness, Triton would not be ready while any model is loading or unloading, nor ever again
    after a model failed to load. The gateway asks for the readiness of individual models instead.
    """
    models = (f"--load-model={name}" for name in models_at_start(repository))
    return ["--model-control-mode=explicit", "--strict-readiness=false", *models]


class ModelDependencies:
    """Reads from the configurations which models are steps of ensembles.

    Args:
        repository: The model repository.
    """

    def __init__(self, repository: Path) -> None:
        paths = sorted(repository.glob("*/config.pbtxt"))
        configs = {path.parent.name: path.read_text(encoding="utf-8") for path in paths}
        self._steps = {
            name: _STEP.findall(config) for name, config in configs.items() if _ENSEMBLE.search(config)
        }

    def needed_by(self, model: str) -> set[str]:
        """Return a model, the steps of an ensemble, and the steps of those that are ensembles too."""
        return {model}.union(*map(self.needed_by, self._steps.get(model, ())))

    def ensembles_with(self, model: str) -> list[str]:
        """Return the ensembles that cannot answer without a model."""
        return [name for name in self._steps if name != model and model in self.needed_by(name)]
