"""Make the embedded runtime's container image: ``python -m tools.image``, or ``make image``.

Debian's mmdebstrap makes the root filesystem and follows in it what ``pipelines/deploy/Dockerfile`` says
about the stage ``server``; umoci makes an OCI image layout of it. Runs in ``.venv-image``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pipelines.errors import DraftproofError
from pipelines.program import EXIT_PASS, run_program
from tools.image.dockerfile import Copy, read_stage
from tools.image.layers import LAYERS, MOST_BYTES, split
from tools.image.layout import write_layout
from tools.image.root import SUITE, make_root, missing_tools
from tools.image.sbom import bill_of_materials
from tools.image.source import DOCKERFILE, ROOT, commit, copy_tracked
from tools.image.wheels import download
from tools.wheel.__main__ import project_version

STAGE = "server"
LOCK = Path("requirements/run.txt")
SBOM = "opt/draftproof/sbom.cdx.json"
"""Path of the bill of materials in the image."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description="Make the container image.")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "dist",
        help="folder of image/, image.cdx.json and image.json (dist/)",
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        result = make_image(options.output)
        (options.output / "image.json").write_text(json.dumps(result, indent=4) + "\n", encoding="utf-8")
        print(result["digest"])
        return EXIT_PASS

    return run_program(work)


def make_image(output: Path) -> dict[str, object]:
    """Write ``image``, an OCI image layout, and ``image.cdx.json``, its bill of materials.

    Args:
        output: Folder for both.

    Returns:
        Digest, sizes, numbers of packages and conditions.

    Raises:
        DraftproofError: A tool is missing or failed, or the image is not as it must be.
    """
    missing = missing_tools()
    if missing:
        raise DraftproofError(
            "the image cannot be made here",
            values=f"not found: {', '.join(missing)}",
            limit="needs mmdebstrap and umoci",
            remedy=f"apt-get install {' '.join(missing)}",
        )
    stage = read_stage(DOCKERFILE.read_text(encoding="utf-8"), STAGE)
    assert Copy(str(LOCK), f"/opt/draftproof/code/{LOCK}") in stage.steps, (
        "the image has the packages of the lock"
    )
    revision, created = commit()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="draftproof-image-") as name:
        scratch = Path(name)
        copy_tracked(stage, scratch / "checkout")
        download(ROOT / LOCK, scratch / "wheels")
        root = make_root(stage, scratch, created)
        packages = json.loads((scratch / "inventory.json").read_text(encoding="utf-8"))
        bill = bill_of_materials(packages, project_version(), revision, created)
        sizes = split(root, scratch, {SBOM: bill.encode()}, created)
        labels = {
            "org.opencontainers.image.version": project_version(),
            "org.opencontainers.image.revision": revision,
        }
        layers = [scratch / f"{layer}.tar" for layer in LAYERS]
        written = write_layout(output / "image", project_version(), layers, stage, labels, created)
    (output / "image.cdx.json").write_text(bill, encoding="utf-8")
    return {
        "digest": written.digest,
        "limit_bytes": MOST_BYTES,
        "layers": [
            {"name": layer, "unpacked_bytes": sizes[layer], "compressed_bytes": compressed}
            for layer, compressed in zip(LAYERS, written.compressed, strict=True)
        ],
        "num_packages": {kind: len(found) for kind, found in packages.items()},
        "num_without_licence": {
            kind: sum(not each["licences"] for each in found) for kind, found in packages.items()
        },
        "conditions": {
            "debian": SUITE,
            "mmdebstrap": _version("mmdebstrap"),
            "umoci": _version("umoci"),
            "python": platform.python_version(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "git_sha": revision,
            "command": "make image",
        },
    }


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[2 if program == "umoci" else 1]


if __name__ == "__main__":
    sys.exit(main())
