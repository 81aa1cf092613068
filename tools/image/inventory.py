"""Lists the packages of a root filesystem: run by mmdebstrap, ``python -m tools.image.inventory ROOT ...``.

It runs before apt's lists are removed, because only they know the digests of Debian's packages.
"""

from __future__ import annotations

import email.parser
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

_MACHINE_READABLE = "copyright-format/1.0"
_SITE_PACKAGES = "opt/draftproof/venv/lib/python*/site-packages"


def inventory(root: Path, available: str, wheels: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the packages of Debian and of Python.

    Args:
        root: The root filesystem.
        available: What ``apt-cache dumpavail`` prints.
        wheels: Folder of the wheels that were installed.
    """
    digests = {(each["Package"], each["Version"]): each["SHA256"] for each in _paragraphs(available)}
    status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8")
    debian = [
        {
            "name": each["Package"],
            "version": each["Version"],
            "architecture": each["Architecture"],
            "sha256": digests.get((each["Package"], each["Version"])),
            "licences": _debian_licences(root / "usr/share/doc" / each["Package"] / "copyright", root),
        }
        for each in _paragraphs(status)
        if each["Status"] == "install ok installed"
    ]
    files = {_normal(path.name.partition("-")[0]): path for path in wheels.glob("*.whl")}
    python = []
    for path in sorted(root.glob(f"{_SITE_PACKAGES}/*.dist-info/METADATA")):
        about = email.parser.Parser().parsestr(path.read_text(encoding="utf-8"), headersonly=True)
        name = _normal(about["Name"])
        python.append(
            {
                "name": name,
                "version": about["Version"],
                "sha256": hashlib.sha256(files[name].read_bytes()).hexdigest(),
                "licences": _python_licences(about),
            }
        )
    by_name = {"debian": debian, "python": python}
    return {kind: sorted(found, key=lambda each: str(each["name"])) for kind, found in by_name.items()}


def _paragraphs(text: str) -> Iterator[Message]:
    for paragraph in text.split("\n\n"):
        if paragraph.strip():
            yield email.parser.Parser().parsestr(paragraph.strip("\n"), headersonly=True)


def _debian_licences(path: Path, root: Path) -> list[str]:
    """Return the short names of a machine-readable file of licences; none for a file in prose."""
    if path.parent.is_symlink():  # shares it with another package
        path = root / "usr/share/doc" / path.parent.readlink() / path.name
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if _MACHINE_READABLE not in text:
        return []
    return sorted(set(re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE | re.IGNORECASE)))


def _python_licences(about: Message) -> list[str]:
    """Return the SPDX expression, else the classifiers, else the first line of the field for any text."""
    if "License-Expression" in about:
        return [about["License-Expression"]]
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    words = str(about.get("License", "")).strip().partition("\n")[0]
    return sorted(classifiers) or ([words] if words else [])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    _root, _available, _wheels, _output = (Path(word) for word in sys.argv[1:])
    _found = inventory(_root, _available.read_text(encoding="utf-8"), _wheels)
    _output.write_text(json.dumps(_found, indent=1, sort_keys=True), encoding="utf-8")
