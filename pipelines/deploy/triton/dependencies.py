"""Finds out which models of a repository cannot answer without others."""

from __future__ import annotations

import re
from pathlib import Path

_ENSEMBLE = re.compile(r'^platform: "ensemble"$', re.MULTILINE)
_STEP = re.compile(r'^\s*model_name: "([^"]*)"$', re.MULTILINE)
_SOCKET = re.compile(
    r'^parameters \{ key: "((?:engine_|target_)?socket)" value: \{ string_value: "([^"]*)" \} \}$',
    re.MULTILINE,
)
_ASKS = "engine_socket"


class ModelDependencies:
    """Reads from the configurations which models each model asks.

    Args:
        repository: The model repository.
    """

    def __init__(self, repository: Path) -> None:
        paths = sorted(repository.glob("*/config.pbtxt"))
        configs = {path.parent.name: path.read_text(encoding="utf-8") for path in paths}
        self._steps = {
            name: _STEP.findall(config) for name, config in configs.items() if _ENSEMBLE.search(config)
        }
        sockets = {name: _SOCKET.findall(config) for name, config in configs.items()}
        server = {path: name for name, found in sockets.items() for key, path in found if key != _ASKS}
        self._asked = {
            name: [server[path] for key, path in found if key == _ASKS and path in server]
            for name, found in sockets.items()
        }

    def needed_by(self, model: str) -> set[str]:
        """Return a model, the steps of an ensemble, and the models whose sockets these ask."""
        needed: set[str] = set()
        left = [model]
        while left:
            name = left.pop()
            if name not in needed:
                needed.add(name)
                left += (*self._steps.get(name, ()), *self._asked.get(name, ()))
        return needed

    def ensembles_with(self, model: str) -> list[str]:
        """Return the ensembles of which a model is a step."""
        return [name for name, steps in self._steps.items() if model in steps]
