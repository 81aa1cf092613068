"""Downloads the wheels of the lock for the image's Python, which need not be this machine's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.markers import Marker

from pipelines.errors import DraftproofError

PYTHON = "3.11"
"""Debian bookworm's."""

_GLIBC_MINOR = 36  # Debian bookworm's is 2.36
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC_MINOR, 4, -1)]
_OLD_PLATFORMS = ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
_ENVIRONMENT = {
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.2",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
_PIN = re.compile(
    r"^([A-Za-z0-9._-]+==[^ ;\\\n]+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=.*\n)+)", re.MULTILINE
)


def pins(lock: str) -> list[str]:
    """Return the pins that apply to the image's Python, each with its hashes and without its marker.

    pip reads markers for the Python that runs it, also where it downloads for another one.

    Args:
        lock: The text of a lock file.
    """
    return [
        f"{pin} \\\n{hashes}"
        for pin, marker, hashes in _PIN.findall(lock)
        if not marker or Marker(marker).evaluate(_ENVIRONMENT)
    ]


def download(lock: Path, folder: Path) -> None:
    """Download the wheels into a folder and check their hashes.

    Raises:
        DraftproofError: pip failed; its message stands above.
    """
    folder.mkdir()
    wanted = folder.with_suffix(".txt")
    wanted.write_text("".join(pins(lock.read_text(encoding="utf-8"))), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--only-binary", ":all:", "--no-deps", "--require-hashes", "--dest", str(folder)]
    command += ["--python-version", PYTHON, "--implementation", "cp", "--abi", f"cp{PYTHON.replace('.', '')}"]
    for platform in (*_PLATFORMS, *_OLD_PLATFORMS):
        command += ["--platform", platform]
    done = subprocess.run([*command, "--requirement", str(wanted)], check=False)
    if done.returncode != 0:
        raise DraftproofError(
            "the packages of the image could not be downloaded",
            values=f"pip ended with {done.returncode}",
            limit=f"wheels of {lock.name} for Python {PYTHON} on Linux, x86-64",
            remedy="fix what its message names",
        )
