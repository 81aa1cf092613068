"""Runs the machine's own HAProxy with ``deploy/server/haproxy.cfg``, on free ports."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.ports import Ports
from tests.attacks import Address
from tests.integration.conftest import wait_until
from tests.support.deployment_files import DEPLOY, compose

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
IS_MISSING = "haproxy is not installed (Debian: apt install haproxy)"


@dataclass(frozen=True)
class Proxy:
    """A running HAProxy."""

    process: subprocess.Popen[bytes]
    ports: Ports

    @property
    def http(self) -> Address:
        return "127.0.0.1", self.ports.http

    @property
    def grpc(self) -> Address:
        return "127.0.0.1", self.ports.grpc


@contextlib.contextmanager
def proxies(folder: Path) -> Iterator[Callable[..., Proxy]]:
    """Yield a function that starts HAProxy as compose does: (ports, changes to the file, certificates)."""
    started = []
    text = (DEPLOY / "server" / "haproxy.cfg").read_text()
    [*shell, line] = compose()["services"]["haproxy"]["entrypoint"]

    def begin(behind: Ports, changes: dict[str, str] | None = None, certificates: Path = folder) -> Proxy:
        own = Ports.free(with_openai=True)
        replaced = {
            "127.0.0.1:8000": f"127.0.0.1:{behind.http}",
            "127.0.0.1:8001": f"127.0.0.1:{behind.grpc}",
            "127.0.0.1:8002": f"127.0.0.1:{behind.metrics}",
            "127.0.0.1:9000": f"127.0.0.1:{behind.openai or behind.http}",
            "check port 8000": f"check port {behind.http}",
            "/certs": str(certificates),
            ":8100": f":{own.http}",
            ":8101": f":{own.grpc}",
            ":8102": f":{own.metrics}",
            ":8103": f":{own.openai}",
        }
        changed = text
        for old, new in {**replaced, **(changes or {})}.items():
            assert old in changed, old
            changed = changed.replace(old, new)
        config = folder / f"{len(started)}.cfg"
        config.write_text(changed)
        program = line.replace("/etc/draftproof/haproxy.cfg", str(config)).replace(
            "/certs", str(certificates)
        )
        process = subprocess.Popen([*shell, program.replace("exec haproxy", f"exec {HAPROXY}")])
        started.append(process)
        proxy = Proxy(process, own)
        assert wait_until(lambda: process.poll() is not None or listens(own.http)), "HAProxy does not start"
        assert process.poll() is None, "HAProxy ended"
        return proxy

    try:
        yield begin
    finally:
        for process in started:
            process.terminate()
            process.wait(120)


def listens(port: int) -> bool:
    """Return whether a loopback port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
