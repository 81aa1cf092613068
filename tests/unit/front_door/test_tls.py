"""Tests of the certificate: a renewed one is used for new connections, and a damaged one is not."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from pipelines.errors import ServerStartError
from pipelines.front_door import serving
from pipelines.front_door.serving import TlsContext
from tests.support.certificate import make_certificate


async def served_certificate(context: TlsContext) -> str:
    """Return the certificate, PEM, that a new connection gets."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=context.context)
    port = server.sockets[0].getsockname()[1]
    found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    server.close()
    return found


async def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_LOOK_INTERVAL_S", 0.01)
    files = make_certificate(tmp_path, "first")
    context = TlsContext(files)
    watching = asyncio.create_task(context.watch())
    first = await served_certificate(context)
    make_certificate(tmp_path, "second")
    second = Path(files.certificate).read_text()
    while (seen := await served_certificate(context)) == first:
        await asyncio.sleep(0.01)
    assert ssl.PEM_cert_to_DER_cert(seen) == ssl.PEM_cert_to_DER_cert(second)
    Path(files.key).write_text("damaged")
    while "the earlier certificate stays in use" not in caplog.text:
        await asyncio.sleep(0.01)
    assert await served_certificate(context) == seen
    watching.cancel()


@pytest.mark.parametrize("content", ["", "damaged", None])
def test_files_that_are_no_certificate_are_refused_at_start(tmp_path: Path, content: str | None) -> None:
    files = make_certificate(tmp_path)
    certificate = Path(files.certificate)
    certificate.unlink() if content is None else certificate.write_text(content)
    with pytest.raises(ServerStartError, match="no certificate and private key"):
        TlsContext(files)
