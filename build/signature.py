"""Sign the list of a package's files, and check the signature, with Ed25519 keys in PEM files.

``openssl genpkey -algorithm ed25519 -out key.pem`` makes a key, and
``openssl pkey -in key.pem -pubout -out key.pub`` writes its public part. ``cryptography`` is imported only
where there is a key: most servers demand none, and start sooner without it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.errors import PackageError


def sign(content: bytes, private_key: Path) -> str:
    """Return the signature of bytes, in base64.

    Args:
        content: What is signed.
        private_key: PEM file of an Ed25519 key without a password.

    Raises:
        PackageError: The file holds no such key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _read_key(private_key, Ed25519PrivateKey, lambda pem: load_pem_private_key(pem, password=None))
    return base64.b64encode(key.sign(content)).decode("ascii")


def check_signature(content: bytes, signature: str, public_key: Path, place: Path) -> None:
    """Check that bytes were signed with the private part of a key.

    Args:
        content: What was signed.
        signature: Return value of ``sign``.
        public_key: PEM file of an Ed25519 public key.
        place: The signature's file, for the error.

    Raises:
        PackageError: They were not, or the file holds no such key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _read_key(public_key, Ed25519PublicKey, load_pem_public_key)
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), content)
    except (InvalidSignature, ValueError):  # ValueError: it is no base64
        raise PackageError(
            f"the package was signed with another key, or has changed since: {place}: "
            f"{signature.strip():.100}, which does not fit {public_key}",
            "use a package from whoever has the private key, or the public key of whoever signed it",
        ) from None


def _read_key(path: Path, kind: Any, load: Callable[[bytes], Any]) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        seen = " ".join(str(error).split())
    else:
        if isinstance(key, kind):
            return key
        seen = type(key).__name__
    raise PackageError(
        f"{path} is no {kind.__name__} in a PEM file without a password: {seen}",
        "make one: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out "
        "key.pub",
    )
