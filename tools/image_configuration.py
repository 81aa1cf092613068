"""Finishes the configuration of an image that buildah wrote, and prints the image's digest.

OCI's format has no health check, so buildah leaves it out; Docker reads it in the configuration, where its
own builder writes it. Comments of the history hold ids of buildah's that no second build has.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Change the one image of an OCI layout; reads what ``buildah inspect`` says of it."""
    health_check = json.load(sys.stdin)["Docker"]["config"]["Healthcheck"]

    def rewrite(descriptor: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
        old = folder / "blobs" / descriptor["digest"].replace(":", "/")
        document = json.loads(old.read_bytes())
        old.unlink()
        change(document)
        content = json.dumps(document).encode()
        descriptor.update(digest=f"sha256:{hashlib.sha256(content).hexdigest()}", size=len(content))
        (folder / "blobs" / descriptor["digest"].replace(":", "/")).write_bytes(content)

    def configure(document: dict[str, Any]) -> None:
        document["config"]["Healthcheck"] = health_check
        for step in document["history"]:
            step.pop("comment", None)

    index = json.loads((folder / "index.json").read_bytes())
    (image,) = index["manifests"]
    rewrite(image, lambda manifest: rewrite(manifest["config"], configure))
    (folder / "index.json").write_text(json.dumps(index))
    print(image["digest"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
