"""Writes an OCI image layout with umoci."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipelines.errors import DraftproofError
from tools.image.dockerfile import Stage
from tools.image.root import PATH


@dataclass(frozen=True)
class Written:
    """An image in a layout.

    Attributes:
        digest: Digest of its manifest.
        compressed: Bytes of each layer, in order.
    """

    digest: str
    compressed: Sequence[int]


def write_layout(
    layout: Path, tag: str, layers: Sequence[Path], stage: Stage, labels: Mapping[str, str], created: int
) -> Written:
    """Write an image; what the folder held before is gone.

    Args:
        layout: The folder.
        tag: The image's name in it.
        layers: Tar files, the lowest first.
        stage: User, environment, labels and working directory.
        labels: Further labels.
        created: The image's time, in seconds since 1970.

    Raises:
        DraftproofError: umoci failed.
    """
    shutil.rmtree(layout, ignore_errors=True)
    image = f"--image={layout}:{tag}"
    time = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    _umoci("init", f"--layout={layout}")
    _umoci("new", image)
    for layer in layers:
        _umoci(
            "raw",
            "add-layer",
            image,
            f"--history.created={time}",
            f"--history.comment={layer.stem}",
            str(layer),
        )
    config = [f"--config.user={stage.user}", f"--config.workingdir={stage.working_dir}"]
    environment = {"PATH": PATH, **stage.environment}
    config += [f"--config.env={name}={value}" for name, value in environment.items()]
    config += [f"--config.label={name}={value}" for name, value in {**stage.labels, **labels}.items()]
    fixed = [f"--created={time}", "--architecture=amd64", "--os=linux", "--no-history"]
    _umoci("config", image, *config, *fixed)
    _umoci("gc", f"--layout={layout}")
    [entry] = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    manifest = _blob(layout, entry["digest"])
    return Written(entry["digest"], [layer["size"] for layer in manifest["layers"]])


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    path = layout / "blobs" / digest.replace(":", "/")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _umoci(*arguments: str) -> None:
    done = subprocess.run(["umoci", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DraftproofError(
            "the image could not be written",
            values=f"umoci {arguments[0]}: {' '.join(done.stderr.split())}",
            limit="umoci 0.4.7 or newer, and room for the layers",
            remedy="fix what the message names",
        )
