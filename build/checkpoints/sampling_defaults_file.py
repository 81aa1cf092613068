"""Reads the sampling parameters that a checkpoint recommends, for ``sampling.json`` of an engine.

They stand in ``generation_config.json``. The keys that count are those that vLLM takes as defaults of
requests (https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html), except ``max_new_tokens``.
"""

from __future__ import annotations

import json
from pathlib import Path

from build.checkpoints.end_tokens import GENERATION_CONFIG
from build.checkpoints.model_config import read_json
from pipelines.errors import CheckpointError

FILE_NAME = "sampling.json"

_LEAST_POSITIVE = 0.01  # of values that must not be 0
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (_LEAST_POSITIVE, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (_LEAST_POSITIVE, 100.0),
}


def read_sampling_defaults(directory: Path) -> str | None:
    """Return the content of ``sampling.json`` for a checkpoint; None if it recommends nothing.

    Args:
        directory: Checkpoint as published.

    Raises:
        CheckpointError: ``generation_config.json`` is invalid.
    """
    path = directory / GENERATION_CONFIG
    if not path.is_file():
        return None
    document = read_json(path)
    found = {name: document[name] for name in _RANGES if document.get(name) is not None}
    for name, value in found.items():
        least, most = _RANGES[name]
        kinds = (int,) if name == "top_k" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            raise CheckpointError(
                f"{path} recommends an invalid sampling parameter",
                values=f"{name}={json.dumps(value)}",
                limit=f"a number from {least} to {most}",
                remedy="download the file again, or correct the key",
            )
    return json.dumps(found, indent=2, sort_keys=True) + "\n" if found else None
