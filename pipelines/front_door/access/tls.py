"""Reads the certificate of the server, and reads it again when it is renewed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from pipelines.deploy.front_door import Tls
from pipelines.errors import ServerStartError

_LOG = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 10.0


class TlsContext:
    """TLS 1.2 or newer with the certificate of a file.

    Attributes:
        context: For the listening socket; new connections get the latest certificate.

    Args:
        files: Files of the certificate.

    Raises:
        ServerStartError: They are missing, are no certificate and key, or do not fit together.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._changed_ns = self._times()
        try:
            self.context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise ServerStartError(
                "the certificate cannot be read",
                values=f"{files.certificate}, {files.key}: {error}",
                limit="a PEM certificate and its private key, without a password",
                remedy="correct the files, or their names in the settings of the front door",
            ) from None

    async def watch(self) -> None:
        """Read the files again whenever they change."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            if (now_ns := self._times()) == self._changed_ns:
                continue
            try:
                # A key that does not fit would leave the context without either.
                TlsContext(self._files)
                self.context.load_cert_chain(self._files.certificate, self._files.key, password="")
                self._changed_ns = now_ns
            except (OSError, ssl.SSLError, ServerStartError) as error:
                _LOG.error("the earlier certificate stays in use: %s", error)

    def _times(self) -> tuple[int, ...]:
        try:
            names = (self._files.certificate, self._files.key)
            return tuple(Path(name).stat().st_mtime_ns for name in names)
        except OSError:
            return ()
