"""Reads the ``parameters`` section of a model's rendered ``config.pbtxt``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pipelines.errors import RepositoryError
from pipelines.manifest import read_checked
from pipelines.router.preprocessing import Preprocessing
from pipelines.text.prompt_tokenizer import PromptTokenizer

_Value = TypeVar("_Value")
_REMEDY = "render the repository again with 'draftproof repository'"


@dataclass(frozen=True)
class ModelParameters:
    """The settings of one model with checked access.

    Attributes:
        model_name: Name of the model in the repository.
        values: Text of each parameter by name.
        input_names: Inputs that ``config.pbtxt`` declares.
    """

    model_name: str
    values: dict[str, str]
    input_names: tuple[str, ...] = ()

    @classmethod
    def from_triton(cls, args: dict[str, str]) -> ModelParameters:
        """Read the arguments of ``TritonPythonModel.initialize``."""
        config = json.loads(args["model_config"])
        return cls(
            model_name=args["model_name"],
            values={name: entry["string_value"] for name, entry in config.get("parameters", {}).items()},
            input_names=tuple(entry["name"] for entry in config.get("input", [])),
        )

    def text(self, name: str) -> str:
        """Return a parameter.

        Raises:
            RepositoryError: The parameter is missing.
        """
        if name not in self.values:
            raise RepositoryError(
                f"config.pbtxt of model '{self.model_name}' has no parameter '{name}'", _REMEDY
            )
        return self.values[name]

    def integer(self, name: str) -> int:
        """Return a parameter that is a whole number.

        Raises:
            RepositoryError: The parameter is missing or invalid.
        """
        return self._parsed(name, int)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a parameter that is a list of whole numbers; errors as for ``integer``."""
        return self._parsed(name, lambda text: tuple(map(int, text.split(","))))

    def _parsed(self, name: str, parse: Callable[[str], _Value]) -> _Value:
        text = self.text(name)
        try:
            return parse(text)
        except ValueError:
            raise RepositoryError(
                f"config.pbtxt of model '{self.model_name}' has {name}={text!r}, not whole numbers", _REMEDY
            ) from None

    def path(self, name: str) -> Path:
        """Return a parameter that is a path."""
        return Path(self.text(name))

    def preprocessing(self) -> Preprocessing:
        """Load the target's tokenizer.

        Raises:
            EngineLoadError: It cannot be read, or is not the one for which the model was rendered.
        """
        path = self.path("tokenizer_file")
        tokenizer = PromptTokenizer(read_checked(path, self.text("tokenizer_sha256")), path)
        return Preprocessing(tokenizer, self.integer("max_seq_len"))
