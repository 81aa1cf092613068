"""NVIDIA's ``tritonserver`` for a rehearsal: the real Triton of the wheel, on the stand-in backend.

It takes the command line of ``pipelines/deploy/triton/nvidia_triton.py``. Models of the backend
``tensorrtllm`` become Python models (``tests/stand_in_tensorrt_llm``); nothing else of the repository
changes. Options that need a GPU are left out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pipelines.deploy.triton.install import TritonInstall
from tests.stand_in_tensorrt_llm.repository import stand_in

_OF_A_GPU = ("--cuda-memory-pool-byte-size", "--enable-peer-access", "--pinned-memory-pool-byte-size")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model-repository", type=Path, required=True)
    parser.add_argument("--backend-directory", type=Path, required=True)
    options, others = parser.parse_known_args(arguments)
    assert (options.backend_directory / "tensorrtllm").is_dir()
    for role in ("draft", "target"):
        stand_in(options.model_repository / role)
    run, install = options.model_repository.parent, TritonInstall.find()
    command = [
        str(install.binary),
        f"--model-repository={options.model_repository}",
        f"--backend-directory={install.prepare_backend(run / 'backends')}",
        "--allow-gpu-metrics=false",
        *(option for option in others if not option.startswith(_OF_A_GPU)),
    ]
    found = f"{os.environ['PATH']}:{os.defpath}"  # the Python backend starts its stubs through a shell
    environment = {**os.environ, **install.environment(run / "libraries"), "PATH": found}
    os.execve(command[0], command, environment)
