"""Find the safetensors files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from pipelines.errors import CheckpointError

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth")


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint.

    Raises:
        CheckpointError: One is missing, or the weights are pickles.
    """
    names = [path.name for path in directory.iterdir()]
    return tuple(directory / name for name in weight_names(directory, str(directory), names))


def weight_names(directory: Path, where: str, present: Collection[str]) -> tuple[str, ...]:
    """Return the names of a checkpoint's safetensors files.

    Args:
        directory: Directory with the index, if the checkpoint has one.
        where: The checkpoint, for error messages.
        present: Names of all its files, which may be elsewhere.

    Raises:
        CheckpointError: One is missing, or the weights are pickles.
    """
    if _INDEX in present:
        return _indexed(directory / _INDEX, where, present)
    if _WHOLE in present:
        return (_WHOLE,)
    pickles = sorted(name for name in present if name.endswith(_PICKLES))
    if pickles:
        raise CheckpointError(
            f"{where} has its weights in pickles",
            values=", ".join(pickles[:3]),
            limit="safetensors only: a pickle can run code when it is read",
            remedy="use a revision with safetensors, or convert it with transformers' save_pretrained",
        )
    shards = sorted(name for name in present if name.endswith(".safetensors"))
    raise CheckpointError(
        f"{where} is not complete",
        values=f"safetensors files: {', '.join(shards[:3]) or 'none'}",
        limit=f"{_WHOLE}, or shards with {_INDEX}",
        remedy="download the checkpoint again, or use another",
    )


def _indexed(index: Path, where: str, present: Collection[str]) -> tuple[str, ...]:
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        names = sorted({Path(name).name for name in listed})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{index} cannot be read",
            values=repr(error),
            limit="a JSON object with weight_map",
            remedy="download the checkpoint again",
        ) from None
    missing = [name for name in names if name not in present]
    if missing:
        raise CheckpointError(
            f"{where} is not complete",
            values=f"missing {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" * (len(missing) > 3)),
            limit=f"{index.name} lists {len(names)} files",
            remedy="download the checkpoint again, or use another",
        )
    return tuple(names)
