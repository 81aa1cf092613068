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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.deploy.containers import Container
from pipelines.deploy.endpoint import EXIT_TIMEOUT_S, Endpoint
from pipelines.deploy.launch import Launch
from pipelines.deploy.models import models_at_start
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.process import ProcessIdentity
from pipelines.deploy.server_command import background_command
from pipelines.deploy.server_log import last_words
from pipelines.deploy.triton_install import REPOSITORY_ROOT, TritonInstall
from pipelines.errors import RecipeError, ServerStartError, ServerUnavailableError

RUN = REPOSITORY_ROOT / ".run"

KILL_AFTER_S = EXIT_TIMEOUT_S + 15.0  # the models' own processes are ended after that wait
_POLL_S = 0.1


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
        process: The ``tritonserver`` process, or the ``mpirun``, ``docker`` or ``podman`` around it.
        container: What ``process`` runs it in, if it does.
    """

    directory: Path
    ports: Ports
    process: ProcessIdentity
    container: Container | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        ports: Ports,
        *,
        exit_timeout_s: int = EXIT_TIMEOUT_S,
        report: Callable[[str], None] = print,
    ) -> Server:
        """Start Triton on ``<directory>/model_repository``; it is not ready yet.

        Args:
            directory: ``.run/<recipe>``; its ``launch.json`` says which Triton.
            ports: Where it shall listen, on loopback.
            exit_timeout_s: How long it waits for requests in flight when it is told to end.
            report: Gets a line about what takes long.

        Raises:
            PortInUseError: A port is taken; nothing was started.
            ServerStartError: The repository, Triton, or a GPU that it needs is missing, or a server of this
                directory runs.
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
        cls.clear(directory)
        ports.check_free()
        command = background_command(directory, Endpoint(ports, exit_timeout_s=exit_timeout_s), report)
        with (directory / "server.log").open("wb") as log:
            child = subprocess.Popen(
                command.arguments,
                cwd=REPOSITORY_ROOT,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # not ended by the terminal that the command ran in
            )
        process = ProcessIdentity.of(child.pid)
        if process is None:
            raise _died(directory / "server.log")
        child.returncode = 0  # it is watched by its identity, here and in later commands
        server = cls(directory, ports, process, command.container)
        server._write_pid_file()
        return server

    @classmethod
    def running(cls, directory: Path) -> Server | None:
        """The server that the pid file names, if it lives."""
        server = cls._named(directory)
        return server if server is not None and server.process.is_alive else None

    @classmethod
    def clear(cls, directory: Path) -> None:
        """Remove what a killed server left behind; call it only when none runs."""
        server = cls._named(directory)
        if server is not None and server.container is not None:
            server.container.remove()
        end_models_without_server(directory)

    @classmethod
    def _named(cls, directory: Path) -> Server | None:
        try:
            state: dict[str, Any] = json.loads((directory / "server.json").read_text(encoding="utf-8"))
            container = Container(**state["container"]) if state.get("container") else None
            return cls(directory, Ports(**state["ports"]), ProcessIdentity(**state["process"]), container)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def log(self) -> Path:
        """What Triton and the models print."""
        return self.directory / "server.log"

    def wait_ready(self, timeout_s: float | None = None) -> float:
        """Wait until every model is loaded.

        Args:
            timeout_s: How long; None: as long as its runtime may need.

        Returns:
            Seconds waited.

        Raises:
            ServerStartError: It ended, with the telling lines of its log; or the time is over.
        """
        began_s = time.monotonic()
        timeout_s = Launch.read(self.directory).ready_timeout_s if timeout_s is None else timeout_s
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
        """Whether the server answers and every model that it loads at its start is loaded."""
        connection = http.client.HTTPConnection(HOST, self.ports.http, timeout=2.0)
        try:
            connection.request("POST", "/v2/repository/index", json.dumps({"ready": True}))
            response = connection.getresponse()
            loaded = {model["name"] for model in json.load(response)} if response.status == 200 else set()
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False
        finally:
            connection.close()
        return bool(loaded) and loaded.issuperset(models_at_start(self.directory / "model_repository"))

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
        state = {
            "process": asdict(self.process),
            "ports": asdict(self.ports),
            "container": asdict(self.container) if self.container else None,
            "log": str(self.log),
        }
        staged = self.directory / ".server.json"
        staged.write_text(json.dumps(state) + "\n", encoding="utf-8")
        staged.replace(self.directory / "server.json")

    def _forget(self) -> None:
        """Remove what is left of an ended server: container, models, pid file, shared memory, zombie."""
        if self.container is not None:  # outlives a docker or podman that was killed
            self.container.remove()
        with contextlib.suppress(ChildProcessError):  # started by an earlier command
            os.waitpid(self.process.pid, os.WNOHANG)
        end_models_without_server(self.directory)
        (self.directory / "server.json").unlink(missing_ok=True)
        for region in Path("/dev/shm").glob(f"{Endpoint(self.ports).shared_memory_prefix}*"):
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


def _died(log: Path) -> ServerStartError:
    return ServerStartError(
        "Triton ended before it was ready",
        values=f"log {log}:\n{last_words(log)}\n",
        limit="every model of the repository must load",
        remedy="mend what the log names; 'make doctor' shows what this machine lacks",
    )
