"""One Triton server: ports checked, started in the background, watched until ready, stopped by its pid file.

The server outlives the command that started it; ``.run/<recipe>/server.json`` says how to find it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.process import ProcessIdentity
from pipelines.deploy.server_log import last_words
from pipelines.deploy.triton_install import REPOSITORY_ROOT, TritonInstall
from pipelines.errors import RecipeError, ServerStartError, ServerUnavailableError

RUN = REPOSITORY_ROOT / ".run"

READY_TIMEOUT_S = 120.0  # the demo is ready in under 10 s; the rest is for slow disks and busy machines
EXIT_TIMEOUT_S = 5  # Triton waits so long for requests in flight when it is told to end
KILL_AFTER_S = EXIT_TIMEOUT_S + 15.0  # the models' own processes are ended after that wait
_POLL_S = 0.1
_STUB_TIMEOUT_S = 120  # for a model's process to come up


def run_directory(recipe: str, run: Path = RUN) -> Path:
    """``.run/<name>`` of a recipe given by name or by the path of its YAML file.

    Raises:
        RecipeError: The file cannot be read.
    """
    if not (recipe.endswith((".yaml", ".yml")) or "/" in recipe):
        return run / recipe
    import yaml

    try:
        name = yaml.safe_load(Path(recipe).read_text(encoding="utf-8"))["name"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise RecipeError(
            "the recipe cannot be read",
            values=f"{recipe}: {' '.join(str(error).split())}",
            limit="a recipe is a YAML mapping with a name",
            remedy="give the name of a recipe or the path of its file",
        ) from None
    return run / str(name)


@dataclass(frozen=True)
class Server:
    """A server that was started and not yet known to have ended; as a context manager it stops at the end.

    Attributes:
        directory: Its ``.run/<recipe>``, with the log and the pid file.
        ports: Where it listens.
        process: The ``tritonserver`` process.
    """

    directory: Path
    ports: Ports
    process: ProcessIdentity

    @classmethod
    def start(cls, directory: Path, ports: Ports, *, exit_timeout_s: int = EXIT_TIMEOUT_S) -> Server:
        """Start Triton on ``<directory>/model_repository``; it is not ready yet.

        Raises:
            PortInUseError: A port is taken; nothing was started.
            ServerStartError: The repository or Triton is missing, or a server of this directory runs.
        """
        repository = directory / "model_repository"
        if not repository.is_dir():
            raise ServerStartError(
                "there is no model repository",
                values=str(repository),
                limit="it is rendered before the server starts",
                remedy="run 'make repository'",
            )
        running = cls.running(directory)
        if running is not None:
            raise ServerStartError(
                "a server of this recipe runs already",
                values=f"process {running.process.pid}, HTTP port {running.ports.http}",
                limit="one server per recipe",
                remedy="use it, or stop it with 'make stop'",
            )
        end_models_without_server(directory)
        ports.check_free()
        install = TritonInstall.find()
        backends = install.lay_out_backend(directory / "backends")
        environment = install.environment(directory / "libraries")
        command = _command(install, repository, backends, ports, exit_timeout_s)
        with (directory / "server.log").open("wb") as log:
            child = subprocess.Popen(
                command,
                cwd=REPOSITORY_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # not ended by the terminal that the command ran in
            )
        process = ProcessIdentity.of(child.pid)
        if process is None:
            raise _died(directory / "server.log")
        child.returncode = 0  # it is watched by its identity, here and in later commands
        server = cls(directory, ports, process)
        server._write_pid_file()
        return server

    @classmethod
    def running(cls, directory: Path) -> Server | None:
        """The server that the pid file names, if it lives."""
        try:
            state: dict[str, Any] = json.loads((directory / "server.json").read_text(encoding="utf-8"))
            server = cls(directory, Ports(**state["ports"]), ProcessIdentity(**state["process"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return server if server.process.is_alive else None

    @property
    def log(self) -> Path:
        """What Triton and the models print."""
        return self.directory / "server.log"

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until every model is loaded.

        Returns:
            Seconds waited.

        Raises:
            ServerStartError: It ended, with the telling lines of its log; or the time is over.
        """
        began_s = time.monotonic()
        while not self.is_ready():
            if not self.process.is_alive:
                self._forget()
                raise _died(self.log)
            if time.monotonic() - began_s > timeout_s:
                raise ServerStartError(
                    "Triton is not ready in time",
                    values=f"{timeout_s:.0f} s, log {self.log}:\n{last_words(self.log)}\n",
                    limit=f"TIMEOUT_S={timeout_s:.0f}",
                    remedy="look into the log, stop it with 'make stop', or allow more time",
                )
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def is_ready(self) -> bool:
        """Whether the server answers and all its models are loaded."""
        connection = http.client.HTTPConnection(HOST, self.ports.http, timeout=2.0)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self, kill_after_s: float = KILL_AFTER_S) -> bool:
        """End the server.

        Returns:
            Whether it ended by itself; if not, it was killed.
        """
        ended = self.process.end(kill_after_s)
        self._forget()
        return ended

    def __enter__(self) -> Server:
        """The server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def _write_pid_file(self) -> None:
        state = {"process": asdict(self.process), "ports": asdict(self.ports), "log": str(self.log)}
        staged = self.directory / ".server.json"
        staged.write_text(json.dumps(state) + "\n", encoding="utf-8")
        staged.replace(self.directory / "server.json")

    def _forget(self) -> None:
        """Remove what is left of an ended server: model processes, pid file, shared memory, zombie."""
        with contextlib.suppress(ChildProcessError):  # started by an earlier command
            os.waitpid(self.process.pid, os.WNOHANG)
        end_models_without_server(self.directory)
        (self.directory / "server.json").unlink(missing_ok=True)
        for region in Path("/dev/shm").glob(f"{_shared_memory_prefix(self.ports)}*"):
            with contextlib.suppress(OSError):
                region.unlink()


def end_models_without_server(directory: Path) -> None:
    """Kill the models' processes that a killed server left behind; call it only when none runs."""
    stub = str(directory / "backends" / "python" / TritonInstall.STUB)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            command = (process / "cmdline").read_bytes().split(b"\0")
            if os.fsdecode(command[0]) == stub:
                os.kill(int(process.name), signal.SIGKILL)


def find_server(directory: Path) -> Server:
    """The running server of a directory.

    Raises:
        ServerUnavailableError: There is none.
    """
    server = Server.running(directory)
    if server is None:
        raise ServerUnavailableError(
            "no server of this recipe runs",
            values=str(directory / "server.json"),
            limit="a server started by 'make serve'",
            remedy="run 'make serve'",
        )
    return server


def _shared_memory_prefix(ports: Ports) -> str:
    return f"draftproof_{ports.http}_"


def _command(
    install: TritonInstall, repository: Path, backends: Path, ports: Ports, exit_timeout_s: int
) -> list[str]:
    return [
        str(install.binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--http-address={HOST}",
        f"--http-port={ports.http}",
        f"--grpc-address={HOST}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={HOST}",
        f"--metrics-port={ports.metrics}",
        f"--exit-timeout-secs={exit_timeout_s}",
        "--disable-auto-complete-config",  # it starts every Python model twice
        "--allow-gpu-metrics=false",
        f"--backend-config=python,shm-region-prefix-name={_shared_memory_prefix(ports)}",
        f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
    ]


def _died(log: Path) -> ServerStartError:
    return ServerStartError(
        "Triton ended before it was ready",
        values=f"log {log}:\n{last_words(log)}\n",
        limit="every model of the repository must load",
        remedy="mend what the log names; 'make doctor' shows what this machine lacks",
    )
