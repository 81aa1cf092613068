"""Scripts that stand in for the programs of a GPU machine and refuse undocumented arguments.

``nvidia-smi``, ``mpirun`` and NVIDIA's ``tritonserver`` each record their calls in the folder that
``STAND_IN_STATE`` names, and do the part of their work that tests can see.
Options are those of the manuals: Open MPI 4.1's ``mpirun(1)``, ``tritonserver --help``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
H100 = "NVIDIA H100 80GB HBM3, 81559, 81079, 9.0, 580.95.05"


class GpuMachine:
    """A folder of programs that is the whole PATH.

    Attributes:
        state: The folder in which they record their calls.
        triton: The root of NVIDIA's Triton; empty until ``install_triton``.
    """

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "programs"
        self.state = folder / "state"
        self.triton = folder / "tritonserver"
        self.programs.mkdir(parents=True)
        self.state.mkdir()

    def install(self, *names: str) -> None:
        for name in names:
            _write_program(self.programs / name, name)

    def install_triton(self) -> None:
        """NVIDIA's Triton, which only says that it is ready."""
        (self.triton / "bin").mkdir(parents=True)
        (self.triton / "backends" / "tensorrtllm").mkdir(parents=True)
        _write_program(self.triton / "bin" / "tritonserver", "tritonserver")
        (self.programs / "tritonserver").symlink_to(self.triton / "bin" / "tritonserver")

    def set_gpus(self, *lines: str) -> None:
        (self.state / "gpus").write_text("".join(f"{i}, {line}\n" for i, line in enumerate(lines)))

    def variables(self) -> dict[str, str]:
        return {"PATH": str(self.programs), "STAND_IN_STATE": str(self.state)}

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Return a program's calls, in order: ``arguments`` and some ``variables``."""
        return [
            json.loads(path.read_text())
            for path in sorted(self.state.glob(f"{name}-*.json"), key=lambda path: path.stat().st_mtime_ns)
        ]


def _write_program(path: Path, name: str) -> None:
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY_ROOT)!r})\n"
        f"from tests.support.stand_in_gpu_machine import main\nsys.exit(main({name!r}, sys.argv[1:]))\n"
    )
    path.chmod(0o755)


def main(name: str, arguments: list[str]) -> int:
    seen = ("DRAFTPROOF_", "TRTLLM_", "OMPI_", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "HOME")
    variables = {key: value for key, value in os.environ.items() if key.startswith(seen)}
    about = {"folder": str(Path.cwd()), "process": os.getpid()}
    record = {"arguments": arguments, "variables": variables, **about}
    staged = _state() / f"{name}-{os.getpid()}"
    staged.write_text(json.dumps(record))
    staged.rename(staged.with_suffix(".json"))
    return int(globals()[f"_{name.replace('-', '_')}"](arguments))


def _state() -> Path:
    return Path(os.environ["STAND_IN_STATE"])


def _nvidia_smi(arguments: list[str]) -> int:
    if (_state() / "broken_driver").exists():
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    gpus = (_state() / "gpus").read_text()
    query, form = arguments
    assert form == "--format=csv,noheader,nounits", arguments
    assert query == "--query-gpu=index,name,memory.total,memory.free,compute_cap,driver_version", arguments
    print(gpus, end="")
    return 0


def _mpirun(arguments: list[str]) -> int:
    """Run the server, which gets only the variables that are passed on, as its workers do."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("-x", action="append", default=[])
    parser.add_argument("--mca", nargs=2, action="append", default=[])
    parser.add_argument("--bind-to", choices=("none", "core", "socket"), required=True)
    parser.add_argument("--oversubscribe", action="store_true")
    parser.add_argument("--wdir", required=True)
    parser.add_argument("--allow-run-as-root", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if os.geteuid() == 0 and not options.allow_run_as_root:
        print("mpirun has detected an attempt to run as root.", file=sys.stderr)
        return 1
    assert options.n == 1, "the backend spawns the ranks of its engines itself"
    passed = {name: os.environ[name] for name in (*options.x, "STAND_IN_STATE")}
    server = subprocess.Popen(options.command, cwd=options.wdir, env=passed)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    return abs(server.wait())


def _tritonserver(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--disable-auto-complete-config", action="store_true")
    needed = ("model-repository", "backend-directory", "exit-timeout-secs", "grpc-address", "grpc-port")
    for name in (*needed, "metrics-address"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("allow-http", "strict-readiness", "enable-peer-access"):
        parser.add_argument(f"--{name}", choices=("true", "false"))
    for name in ("backend-config", "load-model", "cuda-memory-pool-byte-size"):
        parser.add_argument(f"--{name}", action="append")
    parser.add_argument("--pinned-memory-pool-byte-size", type=int)
    parser.add_argument("--model-control-mode", choices=("none", "poll", "explicit"))
    options = parser.parse_args(arguments)
    assert (Path(options.backend_directory) / "tensorrtllm").is_dir()
    assert options.model_control_mode == "explicit"
    assert options.allow_http == "false"
    repository = Path(options.model_repository)
    for model in options.load_model:
        assert (repository / model / "config.pbtxt").is_file(), model
    if (_state() / "bad_engine").exists():
        print("E1120 model_lifecycle.cc:642] failed to load 'target': engine of another version", flush=True)
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before the server's threads begin
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    servicer = _Repository(tuple(options.load_model))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"{options.grpc_address}:{options.grpc_port}")
    server.start()
    print("Started GRPCInferenceService", flush=True)
    signal.sigwait([signal.SIGTERM])
    time.sleep(0.05)
    server.stop(grace=None).wait()
    return 0


class _Repository(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Reports which models are ready."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._models = models

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        reply = service_pb2.RepositoryIndexResponse()
        for name in self._models:
            reply.models.add(name=name, version="1", state="READY")
        return reply
