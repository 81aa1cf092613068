"""What every test shares: versions in the report's head, skips with a reason, one Hypothesis profile."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent

# No deadline: the machines are small and shared, and a slow example is not a wrong one.
settings.register_profile("draftproof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("draftproof"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "draftproof")


def pytest_report_header() -> str:
    """The versions that results depend on."""
    names = ("numpy", "openvino", "nvidia-pytriton", "tokenizers", "tritonclient", "torch", "transformers")
    found = (f"{name} {_version_of(name)}" for name in names)
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, " + ", ".join(found)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped, with the reason, where no GPU is visible."""
    if shutil.which("nvidia-smi") is not None:
        return
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU on this machine (nvidia-smi not found)")
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # keywords hold parameters' names too
            item.add_marker(no_gpu)


def tracked_files() -> list[str]:
    """Paths, relative to the root, of all files that are or will be committed and exist."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return sorted(
        path for path in set(listed.stdout.split("\0")) if path and (REPOSITORY_ROOT / path).is_file()
    )
