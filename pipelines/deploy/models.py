"""Which models of a repository a server loads when it starts; all others when it is told to."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.errors import ServerStartError

PAIR_FILE = "pair.json"
"""In the folder of a model that belongs to one pair of engines; ``build/pair_record.py`` writes it."""


def models_at_start(repository: Path) -> tuple[str, ...]:
    """Names of the models that a server of this repository loads at its start.

    A model of a pair that is on trial is not among them: one that cannot be loaded would keep the server
    from starting.

    Raises:
        ServerStartError: A model's record of its pair cannot be read.
    """
    models = (path.parent for path in sorted(repository.glob("*/config.pbtxt")))
    return tuple(folder.name for folder in models if _loads_at_start(folder / PAIR_FILE))


def loading_options(repository: Path) -> list[str]:
    """Options of ``tritonserver`` by which models come and go while it runs.

    Triton's own word on readiness would be no for as long as any model comes or goes, and for good after
    one that could not be loaded. It is asked for single models instead.
    """
    models = (f"--load-model={name}" for name in models_at_start(repository))
    return ["--model-control-mode=explicit", "--strict-readiness=false", *models]


def _loads_at_start(record: Path) -> bool:
    if not record.exists():
        return True
    try:
        answer = json.loads(record.read_text(encoding="utf-8"))["loads_at_start"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unusable(record, repr(error)) from None
    if type(answer) is not bool:
        raise _unusable(record, f"loads_at_start={answer!r}")
    return answer


def _unusable(record: Path, values: str) -> ServerStartError:
    return ServerStartError(
        "the record of a model's pair cannot be used",
        values=f"{record}: {values}",
        limit="as 'python -m build.repository' of this version writes it",
        remedy="remove the model's folder, or run 'make repository'",
    )
