"""Tests of the certificate: a renewed one is used for new connections, and a damaged one is not."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from pipelines.deploy.front_door import Tls
from pipelines.errors import ServerStartError
from pipelines.front_door import serving
from pipelines.front_door.serving import TlsContext

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make a certificate with")


def make(folder: Path, name: str) -> Tls:
    """Write a certificate for a name."""
    assert OPENSSL is not None
    files = Tls(str(folder / "tls.crt"), str(folder / "tls.key"))
    command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-keyout", files.key, "-out", files.certificate]
    subprocess.run(command, check=True, capture_output=True)
    return files


async def served_certificate(context: TlsContext) -> str:
    """Return the certificate, PEM, that a new connection gets."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context.context)
    port = server.sockets[0].getsockname()[1]
    found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    server.close()
    return found


def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_LOOK_INTERVAL_S", 0.01)
    files = make(tmp_path, "first")

    async def run() -> None:
        context = TlsContext(files)
        watching = asyncio.create_task(context.watch())
        first = await served_certificate(context)
        make(tmp_path, "second")
        second = Path(files.certificate).read_text()
        while (seen := await served_certificate(context)) == first:
            await asyncio.sleep(0.01)
        assert ssl.PEM_cert_to_DER_cert(seen) == ssl.PEM_cert_to_DER_cert(second)
        Path(files.key).write_text("damaged")
        while "the earlier certificate stays in use" not in caplog.text:
            await asyncio.sleep(0.01)
        assert await served_certificate(context) == seen
        watching.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("content", ["", "damaged"])
def test_files_that_are_no_certificate_are_refused_at_start(tmp_path: Path, content: str) -> None:
    files = make(tmp_path, "first")
    Path(files.certificate).write_text(content)
    with pytest.raises(ServerStartError, match="the certificate cannot be read"):
        TlsContext(files)


def test_a_missing_file_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="the certificate cannot be read"):
        TlsContext(Tls(str(tmp_path / "a"), str(tmp_path / "b")))
