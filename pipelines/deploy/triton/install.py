"""Use Triton from the ``nvidia-pytriton`` wheel, which contains the server and the Python backend.

Tested with wheel 0.7.0 (Triton 2.51.0). Requirements that are not obvious:

- The backend directory must contain an executable stub for the running Python, next to the backend.
- A copied stub does not find the wheel's libraries by its rpath, so LD_LIBRARY_PATH names them. The stub also
  links ``libpython3.X.so.1.0``, which a statically built Python does not have.
- The stub uses the packages of the first ``python3`` on PATH. It ignores PYTHONPATH but imports modules from
  its working directory, which is therefore the repository.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipelines.atomic_file import whole_file
from pipelines.errors import ServerStartError
from pipelines.places import CODE

_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class TritonInstall:
    """Paths of the parts of Triton.

    Attributes:
        binary: The program ``tritonserver``.
        backend: Directory of the Python backend.
        stub: Program that runs a Python model.
        libraries: Directory of the wheel's shared libraries.
    """

    STUB: ClassVar[str] = "triton_python_backend_stub"

    binary: Path
    backend: Path
    stub: Path
    libraries: Path

    @classmethod
    def find(cls) -> TritonInstall:
        """Find Triton in the installed wheel, without importing it.

        Raises:
            ServerStartError: The wheel is not installed, or has no stub for this Python.
        """
        spec = importlib.util.find_spec("pytriton")
        if spec is None or not spec.submodule_search_locations:
            raise ServerStartError(
                f"Triton is not installed: no nvidia-pytriton in {sys.prefix}",
                "remove .venv and run 'make doctor'",
            )
        package = Path(spec.submodule_search_locations[0])
        root = package / "tritonserver"
        found = cls(
            binary=root / "bin" / "tritonserver",
            backend=root / "backends" / "python",
            stub=root / "python_backend_stubs" / _PYTHON / cls.STUB,
            libraries=package.parent / "nvidia_pytriton.libs",
        )
        for part in (found.binary, found.backend, found.stub, found.libraries):
            if not part.exists():
                raise ServerStartError(
                    f"nvidia-pytriton is incomplete, or does not support Python {_PYTHON}: {part} is missing",
                    "create the virtual environment with Python 3.10 to 3.12 on x86-64",
                )
        return found

    def prepare_backend(self, directory: Path) -> Path:
        """Create or update the backend directory for Triton, and return it."""
        python = directory / "python"
        python.mkdir(parents=True, exist_ok=True)
        for source in (*self.backend.iterdir(), self.stub):
            target = python / source.name
            if source.is_file() and not _is_copy(source, target):
                with whole_file(target) as made:
                    shutil.copy2(source, made)
        (python / self.stub.name).chmod(0o755)
        return directory

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the environment of the server process.

        Args:
            directory: Folder for a link to Python's shared library. The library's own folder is not added to
                LD_LIBRARY_PATH, because a conda environment also has libstdc++, OpenSSL and others in it.

        Raises:
            ServerStartError: Python's shared library or bash was not found.
        """
        if shutil.which("bash") is None:  # Triton would go on waiting for its models
            raise ServerStartError(
                f"Triton starts Python models with bash, which is not on PATH={os.environ.get('PATH', '')}",
                "install bash, or add its folder to PATH",
            )
        library = shared_python()
        if library is None:
            raise ServerStartError(
                f"Triton's Python backend needs libpython{_PYTHON}.so.1.0, and {sys.executable} has none",
                f"install it (Debian, Ubuntu: apt install libpython{_PYTHON}) or use a Python built with "
                "--enable-shared",
            )
        directory.mkdir(parents=True, exist_ok=True)
        link = directory / library.name
        link.unlink(missing_ok=True)
        if library.is_absolute():
            link.symlink_to(library)
        libraries = [str(self.libraries), str(directory)]
        if os.environ.get("LD_LIBRARY_PATH"):
            libraries.append(os.environ["LD_LIBRARY_PATH"])
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(CODE),
        }


def shared_python() -> Path | None:
    """Return the path of ``libpython3.X.so.1.0``, its name if the loader finds it, or None."""
    name = f"libpython{_PYTHON}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    return Path(name) if ctypes.util.find_library(f"python{_PYTHON}") == name else None


def _is_copy(source: Path, target: Path) -> bool:
    if not target.exists():
        return False
    ours, theirs = target.stat(), source.stat()
    return ours.st_size == theirs.st_size and int(ours.st_mtime) == int(theirs.st_mtime)
