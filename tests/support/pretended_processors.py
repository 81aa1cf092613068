"""Lets OpenVINO start more threads than this machine has processors; without that it starts fewer than asked.

Which kernels it takes depends on the number of threads, so results with many threads can be tested anywhere.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


def pretend_processors(folder: Path, count: int) -> dict[str, str]:
    """Return the variables with which a program sees ``count`` processors; needs a C compiler.

    ``folder``: a folder for the library and for what it shows.
    """
    for number in range(count):
        processor = folder / "cpu" / f"cpu{number}"
        for level in range(4):
            _write(processor / "cache" / f"index{level}" / "shared_cpu_list", f"{number}")
        _write(processor / "topology" / "core_cpus_list", f"{number}")
        _write(processor / "topology" / "physical_package_id", "0")
    for name in ("online", "possible", "present"):
        _write(folder / "cpu" / name, f"0-{count - 1}")
    _write(folder / "node" / "node0" / "cpulist", f"0-{count - 1}")
    library = folder / "pretended_processors.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "PRETENDED_SYSTEM": str(folder), "PRETENDED_PROCESSORS": str(count)}


def _write(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n", encoding="utf-8")
