"""Configures pytest: versions in the report's header, skips with a reason, profiles of Hypothesis."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import inspect
import os
import platform
import shutil
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.distribution import ByGroupOrFile, in_turn
from tests.support.examples import FULL
from tests.support.fake_triton import SERVER_KEY

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent
COROUTINE_WITHIN_S = 180.0

QUARANTINE: dict[str, str] = {}
"""Test that has failed without a change of the code (``tests/unit/test_a.py::test_b``) -> its issue, and what
is known. It runs, and the summary prints how it ended, and why that counts for nothing."""

# For models that tests run in this process; a real server draws its own key.
os.environ["DRAFTPROOF_KEY"] = SERVER_KEY
# Before torch is imported: its threads spin while they wait for each other, and several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each of thousands of clients would load the certificates of the world, which takes 40 ms.
httpx._transports.default.create_ssl_context = cache(httpx._transports.default.create_ssl_context)

# Workers that import the same modules, and the programs that tests start, read what one of them has compiled.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No deadline: test machines are small and shared, so a slow example is not a failure.
settings.register_profile(
    "draftproof", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30
)
settings.register_profile("ci", settings.get_profile("draftproof"), derandomize=True, print_blob=True)
settings.register_profile(FULL, settings.get_profile("draftproof"), max_examples=100)  # --hypothesis-profile
# For tests.breakages, where it matters that a test fails and not with which example.
settings.register_profile(
    "unshrunk", settings.get_profile("ci"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "draftproof"))


def pytest_report_header() -> str:
    """Print the versions that results depend on."""
    names = ("numpy", "openvino", "nvidia-pytriton", "tokenizers", "tritonclient", "torch", "transformers")
    found = (f"{name} {_version_of(name)}" for name in names)
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, " + ", ".join(found)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder with a short path, whatever the test's name is.

    pytest's own path has 30 characters of that name, and a digit more after a thousand runs. The path of a
    socket has at most 107 bytes.
    """
    return tmp_path_factory.mktemp("t")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroupOrFile:
    """Keep the tests of a group or file on one worker."""
    return ByGroupOrFile(config, log)


def pytest_collection() -> None:
    """Search no garbage among hundreds of thousands of objects that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Search for garbage among what tests make, without what was collected."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of a run with several workers, and mark those that cannot run or decide here."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = in_turn(items)
    for item in items:
        if reason := QUARANTINE.get(item.nodeid.partition("[")[0]):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
    if shutil.which("nvidia-smi") is not None:
        return
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU on this machine (nvidia-smi not found)")
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # `keywords` also holds parameter names
            item.add_marker(no_gpu)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, but not for ever; context managers that fixtures return are entered."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(asyncio.wait_for(run(), COROUTINE_WITHIN_S))
    return True


def tracked_files() -> list[str]:
    """Return the paths, relative to the root, of all existing files that are or will be committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return sorted(
        path for path in set(listed.stdout.split("\0")) if path and (REPOSITORY_ROOT / path).is_file()
    )
