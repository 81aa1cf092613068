"""Writes the table in THIRD_PARTY_NOTICES.md from the metadata of installed packages: ``make licences``.

Packages of the lock files are looked up in ``.venv`` and ``.venv-docs``, so ``make test`` and ``make docs``
have to have installed them.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTICES = ROOT / "THIRD_PARTY_NOTICES.md"
LOCKS = ("run", "test", "build", "docs")
_TABLE = "| Package | Licence | Lock files |"
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
# Locked for other systems and for Python 3.10; from the metadata of their wheels.
_ELSEWHERE = {
    "async-timeout": "Apache Software License",
    "colorama": "BSD License",
    "exceptiongroup": "MIT License",
}


def locked() -> dict[str, set[str]]:
    """Return the lock files that each package stands in."""
    found: dict[str, set[str]] = {}
    for lock in LOCKS:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        for name, _ in _LOCKED.findall(text):
            found.setdefault(_normal(name), set()).add(lock)
    return found


def differing() -> list[str]:
    """Return the packages that are locked and not on the page, or on the page and not locked."""
    named = set(re.findall(r"^\| `([^`]+)` \|", NOTICES.read_text(encoding="utf-8"), re.MULTILINE))
    return sorted(named ^ set(locked()))


def main() -> int:
    """Write the table of the page anew; returns 1 if a licence is not known."""
    docs = [str(folder) for folder in ROOT.glob(".venv-docs/lib/python*/site-packages")]
    found = (*distributions(), *distributions(path=docs))
    installed = {_normal(each.metadata["Name"]): each for each in found}
    lines = [_TABLE, "|---|---|---|"]
    unknown = []
    for name, locks in sorted(locked().items()):
        licence = _licence(installed[name]) if name in installed else _ELSEWHERE.get(name, "")
        if not licence:
            unknown.append(name)
        lines.append(f"| `{name}` | {licence} | {', '.join(sorted(locks, key=LOCKS.index))} |")
    if unknown:
        print(f"no metadata of {', '.join(unknown)}: install them first", file=sys.stderr)
        return 1
    head = NOTICES.read_text(encoding="utf-8").partition(_TABLE)[0]
    NOTICES.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
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
