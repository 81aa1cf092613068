"""Makes a Debian root filesystem with mmdebstrap and follows the Dockerfile's steps in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from pipelines.errors import DraftproofError
from tools.image.dockerfile import Copy, Stage
from tools.image.source import ROOT

SUITE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Beside Debian's essential packages: what stands for the Dockerfile's base image. OpenVINO needs libstdc++,
# Triton's Python backend the shared library of Python, and `passwd` has groupadd and useradd.
_PACKAGES = ("libpython3.11", "libstdc++6", "passwd", "python3-minimal")
_INSIDE = "/tmp/draftproof-image"  # scratch folder in the root
_LEFT_OUT = ("man", "locale", "info", "doc")  # of /usr/share; the licences among `doc` stay


def make_root(stage: Stage, scratch: Path, created: int) -> Path:
    """Make the root filesystem.

    Args:
        stage: What to follow.
        scratch: A folder with ``checkout``, the files that may be copied, and ``wheels``. It gets the result,
            ``root.tar``, and ``inventory.json``.
        created: The time of all that is made, in seconds since 1970.

    Returns:
        The tar file.

    Raises:
        DraftproofError: mmdebstrap failed; its message stands above.
    """
    hook = scratch / "hook.sh"
    hook.write_text(_hook(stage, scratch), encoding="utf-8")
    hook.chmod(0o755)
    tar = scratch / "root.tar"
    command = ["mmdebstrap", "--variant=essential", "--architectures=amd64"]
    command += [f"--include={','.join(_PACKAGES)}", f"--customize-hook={hook}"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", SUITE, str(tar)]
    mirror = _mirror()  # without one mmdebstrap uses Debian's
    done = subprocess.run(
        [*command, *["-"] * bool(mirror)],
        input="\n".join(mirror),
        env={**os.environ, "SOURCE_DATE_EPOCH": str(created)},
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DraftproofError(
            "the root filesystem could not be made",
            values=f"mmdebstrap ended with {done.returncode}",
            limit=f"Debian's {SUITE} from a mirror that apt reaches",
            remedy="fix what its message names",
        )
    return tar


def _mirror() -> list[str]:
    """Return the lines of this machine's own mirror; none if apt knows none for the suite."""
    form = "$(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)"
    command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return sources(listed)


def sources(listed: str) -> list[str]:
    """Return lines for a sources.list.

    Args:
        listed: Origin, codename, address, release and component of each list that apt has, line by line.
    """
    found = (line.rsplit(" ", 4) for line in listed.splitlines())  # origins may be empty or have spaces
    return [
        f"deb {address} {release} {component}"
        for origin, codename, address, release, component in found
        if origin == "Debian" and re.fullmatch(rf"{SUITE}(-updates|-security)?", codename)
    ]


def _hook(stage: Stage, scratch: Path) -> str:
    """Return the script that mmdebstrap runs with the path of the root, as root."""
    quoted = shlex.quote(str(scratch))
    packages = Path(sysconfig.get_path("purelib")) / "pip"  # looking for the module would disable distutils
    lines = [
        "#!/bin/sh",
        'set -eu; root="$1"',
        f'mkdir "$root{_INSIDE}"',
        f'cp -R {shlex.quote(str(packages))} {quoted}/wheels "$root{_INSIDE}/"',
    ]
    inside = f"env -i PATH={PATH} PYTHONPATH={_INSIDE} PIP_NO_INDEX=1 PIP_FIND_LINKS={_INSIDE}/wheels"
    for step in stage.steps:
        if isinstance(step, Copy):
            parent = Path(step.target).parent.as_posix()
            lines.append(
                f'mkdir -p "$root{parent}"; cp -R {quoted}/checkout/{step.source} "$root{step.target}"'
            )
        else:
            run = f'{inside} SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" /bin/sh -c {shlex.quote(step.command)}'
            lines.append(f'chroot "$root" {run}')
    lines += [
        f'rm -r "$root{_INSIDE}"',
        f'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-cache dumpavail >{quoted}/available',
        f"export PYTHONPATH={shlex.quote(str(ROOT))}",
        f'{shlex.quote(sys.executable)} -B -m tools.image.inventory "$root"'
        f" {quoted}/available {quoted}/wheels {quoted}/inventory.json",
    ]
    return "\n".join(lines) + "\n"


def missing_tools() -> list[str]:
    """Return those of the tools that this machine lacks."""
    return [name for name in ("mmdebstrap", "umoci") if shutil.which(name) is None]
