"""Start, find and stop a Triton server in the background.

The server keeps running after the command that started it has ended. ``.run/<recipe>/server.json`` records
its process and ports.
"""

from __future__ import annotations

import contextlib
import fcntl
import http
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import DRAIN_S, EXIT_TIMEOUT_S, HOST, Endpoint, Ports
from pipelines.deploy.triton.command import check_installed, gateway_command
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import models_at_start
from pipelines.deploy.triton.place import prefix_of, read_key, remove_shared_memory
from pipelines.errors import RecipeError, ServerStartError, ServerUnavailableError
from pipelines.places import CODE, RUN
from pipelines.process import ProcessIdentity, processes_with

KILL_AFTER_S = DRAIN_S + EXIT_TIMEOUT_S + 15.0
_POLL_S = 0.05
LOCK = "server.lock"
MAX_LINES = 12
MAX_LINE_LENGTH = 600
# Logged on every machine without a GPU; unrelated to a failure.
_HARMLESS = re.compile(r"CUDA|Cuda|NVML|DCGM|in-flight|unloading|successfully unloaded|live models")
_ERROR = re.compile(r"^E\d{4} |^error: |Error|Exception|Signal \(")
_TABLE = re.compile(r"^[+|]")
_STEP = re.compile(r"successfully loaded '(?P<model>\w+)'|^start: (?P<step>.+)$", re.MULTILINE)


def run_directory(recipe: str, run: Path = RUN) -> Path:
    """Return ``.run/<name>`` of a recipe, given by name or by the path of its YAML file.

    Raises:
        RecipeError: The file cannot be read or has no name.
    """
    if not (recipe.endswith((".yaml", ".yml")) or "/" in recipe):
        return run / recipe
    remedy = "use the name of a recipe, or the path of its YAML file, which has the key name"
    document = configuration.load_yaml(Path(recipe), RecipeError, remedy)
    if not isinstance(document, dict) or "name" not in document:
        raise RecipeError(f"the recipe {recipe} has no name", remedy)
    return run / str(document["name"])


def lock_run_directory(directory: Path) -> None:
    """Lock a run directory until this process ends, even after an ``exec``.

    Two servers in one directory would replace each other's sockets and share one table of arms.

    Raises:
        ServerStartError: Another server has the lock, or the directory is not writable.
    """
    path = directory / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ServerStartError(
            f"the run directory is not writable: {path}: {error.strerror}, user {os.getuid()}",
            "create it on a volume that this user can write to, and make that user its owner",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ServerStartError(
            f"another server uses this run directory: it holds {path}",
            "stop that server first, or give this one its own volume",
        ) from None
    os.set_inheritable(lock, True)


def beside(directory: Path) -> Path:
    """Return the run directory of a rollout's second server, inside that of the server in service."""
    return directory / "candidate"


@dataclass(frozen=True)
class Server:
    """A server in the background; as a context manager, it is stopped at the end of the block.

    Attributes:
        directory: Its ``.run/<recipe>``, with ``server.log`` and ``server.json``.
        ports: Ports that it listens on.
        process: The gateway.
        openai_url: Address of OpenAI's API, without a path.
    """

    directory: Path
    ports: Ports
    process: ProcessIdentity
    openai_url: str = ""

    @classmethod
    def start(
        cls,
        directory: Path,
        ports: Ports,
        *,
        exit_timeout_s: int = EXIT_TIMEOUT_S,
        front_door: Path | None = None,
    ) -> Server:
        """Start a server for ``<directory>/model_repository`` without waiting until it is ready.

        Args:
            directory: ``.run/<recipe>``, whose ``launch.json`` describes the server.
            ports: Ports to listen on, on loopback.
            exit_timeout_s: How long Triton may take to unload its models at shutdown.
            front_door: File with the settings of OpenAI's API; None for the defaults.

        Raises:
            PortInUseError: A port is in use.
            ServerStartError: The repository, Triton or a required GPU is missing, the settings of OpenAI's
                API are invalid, or a server of this directory is running.
        """
        repository = directory / "model_repository"
        if not repository.is_dir():
            raise ServerStartError(
                f"there is no model repository {repository}", "run 'draftproof repository'"
            )
        cls.check_none_runs(directory)
        cls.clear(directory)
        ports.check_free()
        settings = FrontDoorSettings.read(front_door)
        endpoint = Endpoint(
            ports, exit_timeout_s=exit_timeout_s, front_door=front_door.resolve() if front_door else None
        )
        check_installed(directory)
        command = gateway_command(directory, endpoint)
        directory.chmod(0o700)  # logs, observations and sockets reveal requests
        with _private_log(directory / "server.log") as log:
            child = subprocess.Popen(
                command.arguments,
                cwd=CODE,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that closing the terminal does not end it
            )
        process = ProcessIdentity.of(child.pid)
        if process is None:
            raise _start_failure(directory / "server.log")
        child.returncode = 0  # avoids a ResourceWarning; ProcessIdentity tracks it from here on
        server = cls(directory, ports, process, settings.url(ports.openai))
        server._write_pid_file()
        return server

    @classmethod
    def of_this_process(cls, directory: Path, endpoint: Endpoint) -> None:
        """Record that this process becomes the server of a directory, so that a rollout finds it."""
        process = ProcessIdentity.of(os.getpid())
        assert process is not None  # it runs
        url = FrontDoorSettings.read(endpoint.front_door).url(endpoint.ports.openai)
        cls(directory, endpoint.ports, process, url)._write_pid_file()

    @classmethod
    def running(cls, directory: Path) -> Server | None:
        """Return the server in ``server.json`` if it is alive."""
        server = cls._named(directory)
        return server if server is not None and server.process.is_alive else None

    @classmethod
    def check_none_runs(cls, directory: Path) -> None:
        """Raise ServerStartError if a server of the directory is running."""
        running = cls.running(directory)
        if running is not None:
            raise ServerStartError(
                f"a server of this recipe is running already: process {running.process.pid}, HTTP port "
                f"{running.ports.http}",
                f"use it, or stop it with '{running.stop_command}'",
            )

    @classmethod
    def all_running(cls, run: Path = RUN) -> list[Server]:
        """Return the servers of this checkout or home that are alive."""
        found = (cls.running(path.parent) for path in sorted(run.glob("*/server.json")))
        return [server for server in found if server is not None]

    @classmethod
    def clear(cls, directory: Path) -> None:
        """Clean up after a killed server; call this only if no server of the directory is running."""
        for process, _ in processes_with(prefix_of(directory)):  # Triton and its models
            process.kill()
        remove_shared_memory(prefix_of(directory))

    @classmethod
    def _named(cls, directory: Path) -> Server | None:
        try:
            state: dict[str, Any] = json.loads((directory / "server.json").read_text(encoding="utf-8"))
            return cls(
                directory,
                Ports(**state["ports"]),
                ProcessIdentity(**state["process"]),
                state["openai_url"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def log(self) -> Path:
        """Return the path of the log of Triton and its models."""
        return self.directory / "server.log"

    @property
    def key(self) -> str:
        """Return the key for operations that only operators may perform."""
        return read_key(self.directory)

    @property
    def stop_command(self) -> str:
        """Return the command that stops it."""
        return f"draftproof stop --recipe {self.directory.name}"

    def wait_ready(
        self, timeout_s: float | None = None, report: Callable[[str], None] = lambda line: None
    ) -> float:
        """Wait until every model is loaded.

        Args:
            timeout_s: Time limit; None: the default of its runtime.
            report: Called with a line for each step of the start.

        Returns:
            Seconds waited.

        Raises:
            ServerStartError: It has ended, or is not ready in time; the message quotes its log.
        """
        began_s = time.monotonic()
        timeout_s = Launch.read(self.directory).ready_timeout_s if timeout_s is None else timeout_s
        num_models = len(models_at_start(self.directory / "model_repository"))
        num_reported = 0
        while not self.is_ready():
            steps = _start_steps(self.log, num_models)
            for step in steps[num_reported:]:
                report(f"{time.monotonic() - began_s:5.0f} s  {step}")
            num_reported = len(steps)
            if not self.process.is_alive:
                self._clean_up()
                raise _start_failure(self.log)
            if time.monotonic() - began_s > timeout_s:
                raise ServerStartError(
                    f"Triton did not become ready within {timeout_s:.0f} s, log {self.log}:\n"
                    f"{error_lines(self.log)}\n",
                    f"read the log and stop it with '{self.stop_command}', or raise --timeout-s",
                )
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def is_ready(self) -> bool:
        """Return whether all models that the server loads at its start are ready, and the front door."""
        is_ready = _answers(f"http://{HOST}:{self.ports.http}/v2/health/ready")
        return is_ready and (not self.ports.openai or _answers(f"{self.openai_url}/health"))

    def reload(self) -> None:
        """Make the server load the pair that its repository holds by now, while its ports stay open."""
        self.process.send(signal.SIGHUP)

    def stop(self, kill_after_s: float = KILL_AFTER_S) -> bool:
        """Stop the server and clean up.

        Returns:
            Whether it ended without being killed.
        """
        ended = self.process.end(kill_after_s)
        self._clean_up()
        return ended

    def __enter__(self) -> Server:
        """Return the server."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def _write_pid_file(self) -> None:
        state = {
            "process": asdict(self.process),
            "ports": asdict(self.ports),
            "log": str(self.log),
            "openai_url": self.openai_url,
        }
        write_whole(self.directory / "server.json", json.dumps(state) + "\n")

    def _clean_up(self) -> None:
        """Remove what an ended server left: processes, ``server.json``, shared memory, zombie."""
        with contextlib.suppress(ChildProcessError):  # started by an earlier command
            os.waitpid(self.process.pid, os.WNOHANG)
        self.clear(self.directory)
        (self.directory / "server.json").unlink(missing_ok=True)


def _answers(url: str) -> bool:
    # The certificate is not checked: it is for the name that clients use, not for this address.
    unchecked = HTTPSHandler(context=ssl._create_unverified_context())
    try:
        with build_opener(ProxyHandler({}), unchecked).open(url, timeout=2.0) as reply:
            return bool(reply.status == http.HTTPStatus.OK)
    except (OSError, http.client.HTTPException):
        return False


def _private_log(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def find_server(directory: Path) -> Server:
    """Return the running server of a directory.

    Raises:
        ServerUnavailableError: No server is running.
    """
    server = Server.running(directory)
    if server is None:
        raise ServerUnavailableError(
            f"no server of this recipe is running, by {directory / 'server.json'}", "run 'draftproof serve'"
        )
    return server


def _start_failure(log: Path) -> ServerStartError:
    return ServerStartError(
        f"Triton ended before it was ready, log {log}:\n{error_lines(log)}\n",
        "fix the error in the log; 'draftproof doctor' shows what this machine lacks",
    )


def _start_steps(log: Path, num_models: int) -> list[str]:
    """Return what a log says about the start: models that Triton has loaded, and what they say themselves."""
    steps = []
    num_loaded = 0
    for match in _STEP.finditer(_text(log)):
        num_loaded += match["model"] is not None
        loaded = f"{match['model']} is loaded, {num_loaded} of {num_models} models"
        steps.append(match["step"] or loaded)
    return steps


def error_lines(log: Path) -> str:
    """Return the lines of a Triton log that explain why it ended: errors, else the last lines.

    The cause is not at the end, because Triton prints a hundred lines of tables after a model failed to load.
    """
    lines = [line.rstrip()[:MAX_LINE_LENGTH] for line in _text(log).splitlines() if line.strip()]
    relevant = [line for line in lines if not _HARMLESS.search(line) and not _TABLE.match(line)]
    errors = [line for line in relevant if _ERROR.search(line)]
    chosen = errors or relevant[-MAX_LINES:]
    if len(chosen) > MAX_LINES:  # the first errors show the cause, the last ones how it ended
        chosen = chosen[: MAX_LINES // 2] + chosen[-MAX_LINES // 2 :]
    last = lines[-1:]
    return "\n".join([*chosen, *(line for line in last if line not in chosen)])


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
