"""A machine with TensorRT-LLM or a container runtime, made of small programs in a folder on PATH.

``trtllm-build`` runs a Python whose packages hold a ``tensorrt_llm`` of a chosen version, as the real one
does. ``docker`` and ``podman`` accept the arguments of their manuals, check that every directory in the
command is mounted, and run it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import REPOSITORY_ROOT

_CONTAINER = """#!{python}
import os, sys
takes_value = {{"--gpus", "--device", "--ipc", "--ulimit", "--userns", "--user", "--env", "--volume"}}
words, mounts, seen = sys.argv[1:], [], {{}}
if words.pop(0) != "run" or words.pop(0) != "--rm":
    sys.exit("only run --rm is expected")
while words[0].startswith("-"):
    name, value = words.pop(0), words.pop(0)
    if name not in takes_value:
        sys.exit("unknown flag: " + name)
    seen.setdefault(name, []).append(value)
    if name == "--volume":
        mounts.append(value.split(":"))
image, command = words[0], words[1:]
if seen.get("--user") != [f"{{os.getuid()}}:{{os.getgid()}}"] or not ({{"--gpus", "--device"}} & set(seen)):
    sys.exit("no user or no GPU")
# getpass.getuser(), which torch calls for the folder of its caches: the image has no account of this number.
if not {{"USER", "LOGNAME"}} & {{variable.partition("=")[0] for variable in seen.get("--env", ())}}:
    sys.exit(f"KeyError: 'getpwuid(): uid not found: {{os.getuid()}}'")
paths = dict(zip(command[1::2], command[2::2]))
def mounted(path, writable):
    return any(path.startswith(m[1]) and m[0] == m[1] and (not writable or m[2:] != ["ro"]) for m in mounts)
for flag, writable in (("--checkpoint_dir", False), ("--input_timing_cache", False), ("--output_dir", True),
                       ("--output_timing_cache", True)):
    if flag in paths and not mounted(paths[flag], writable):
        sys.exit(f"{{flag}} {{paths[flag]}} is not mounted")
print("image", image, flush=True)
programs = {{"trtllm-build": {inside!r}, "python3": {inside_python!r}}}
os.execv(programs[command[0]], command)
"""


class StandInMachine:
    """Writes programs into ``bin``."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)

    def install(self, version: str, program: str = "trtllm-build") -> Path:
        """Install TensorRT-LLM of a version, with one of its programs."""
        return self._program(self.bin / program, version)

    def install_container_runtime(self, name: str, version: str = "1.2.1") -> None:
        """Install ``docker`` or ``podman``, whose image holds TensorRT-LLM of a version."""
        inside = self._program(self.bin.parent / "image" / "trtllm-build", version)
        python = inside.parent / "python3.12"
        text = _CONTAINER.format(python=sys.executable, inside=str(inside), inside_python=str(python))
        _executable(self.bin / name, text)

    def _program(self, path: Path, version: str) -> Path:
        packages = path.parent / "packages"
        metadata = packages / f"tensorrt_llm-{version}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
        python = path.parent / "python3.12"
        _executable(
            python,
            f'#!/bin/sh\nexport PYTHONPATH="{packages}:{REPOSITORY_ROOT}"\nexec "{sys.executable}" "$@"\n',
        )
        main = "import sys; from tests.support.stand_in_trtllm_build import main; sys.exit(main())"
        _executable(path, f"#!{python}\n{main}\n")
        return path


def _executable(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
