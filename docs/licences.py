"""Writes THIRD_PARTY_NOTICES.md from the metadata of installed packages: ``python -m docs.licences``.

Packages of the lock files are looked up in ``.venv`` and ``.venv-docs``, so ``make test`` and ``make docs``
have to have installed them.
``--check`` changes nothing and fails if the file lacks a locked package.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTICES = ROOT / "THIRD_PARTY_NOTICES.md"
LOCKS = ("run", "test", "train", "build", "docs")
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
# Locked for other systems and for Python 3.10; from the metadata of their wheels.
_ELSEWHERE = {
    "async-timeout": "Apache Software License",
    "colorama": "BSD License",
    "exceptiongroup": "MIT License",
}
_HEAD = """# Third-party notices
Draftproof's own sources are under Apache-2.0 (`LICENSE`). `make` installs the packages below from the lock
files in `requirements/`; none of them is part of this repository. `make licences` writes this page from the
metadata of the installed packages: look into a package for the full text of its licence.

`nvidia-pytriton` contains NVIDIA's Triton server (BSD-3-Clause). torch (BSD-3-Clause) stands in
`requirements/torch.txt`. `make bench-peers` installs more packages into environments of their own
(`requirements/peers-*.txt`). What NVIDIA's container for GPUs holds is under NVIDIA's own terms.

The demonstration pair in `engines/demo_pair/` was trained on the source text of the Python standard library,
which is under the PSF License; its prompts quote that text.

The head in `engines/qwen2_5_coder_head/` was trained for Qwen2.5-Coder-1.5B-Instruct (Alibaba Cloud,
Apache-2.0): it began as that model's last layer, and holds rows of its output matrix.
"""


def locked() -> dict[str, set[str]]:
    """Return the lock files that each package stands in."""
    found: dict[str, set[str]] = {}
    for lock in LOCKS:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        for name, _ in _LOCKED.findall(text):
            found.setdefault(_normal(name), set()).add(lock)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if a licence is not known, or with ``--check`` a package is missing."""
    parser = argparse.ArgumentParser(prog="python -m docs.licences", description="Write the notices.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a package is missing")
    options = parser.parse_args(arguments)
    packages = locked()
    if options.check:
        named = set(re.findall(r"^\| `([^`]+)` \|", NOTICES.read_text(encoding="utf-8"), re.MULTILINE))
        differing = sorted(named ^ set(packages))
        if differing:
            print(f"THIRD_PARTY_NOTICES.md: {differing}; run: make licences", file=sys.stderr)
        return int(bool(differing))
    docs = [str(folder) for folder in ROOT.glob(".venv-docs/lib/python*/site-packages")]
    found = (*distributions(), *distributions(path=docs))
    installed = {_normal(each.metadata["Name"]): each for each in found}
    lines = [_HEAD, "| Package | Licence | Lock files |", "|---|---|---|"]
    unknown = []
    for name, locks in sorted(packages.items()):
        licence = _licence(installed[name]) if name in installed else _ELSEWHERE.get(name, "")
        if not licence:
            unknown.append(name)
        lines.append(f"| `{name}` | {licence} | {', '.join(sorted(locks, key=LOCKS.index))} |")
    if unknown:
        print(f"no metadata of {', '.join(unknown)}: install them first", file=sys.stderr)
        return 1
    NOTICES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _licence(package: Distribution) -> str:
    """Return the SPDX expression, else the classifiers, else the field that packages fill as they like."""
    metadata = package.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    words = next(iter(metadata.get_all("License") or []), "").strip().partition("\n")[0]
    return ", ".join(classifiers) or words[:60] or _first_line_of_text(package)


def _first_line_of_text(package: Distribution) -> str:
    files = [file for file in package.files or [] if file.name.startswith("LICENSE")]
    text = files[0].read_text(encoding="utf-8") if files else ""
    return text.strip().partition("\n")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
