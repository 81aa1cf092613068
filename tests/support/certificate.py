"""Makes certificates for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.deploy.front_door import Tls


def make_certificate(folder: Path, name: str = "localhost") -> Tls:
    """Write a certificate for a name and for 127.0.0.1; skip the test where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl to make a certificate with")
    files = Tls(str(folder / "tls.crt"), str(folder / "tls.key"))
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files.key, "-out", files.certificate]
    subprocess.run(command, check=True, capture_output=True)
    return files
