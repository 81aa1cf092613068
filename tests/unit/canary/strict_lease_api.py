"""A stand-in for the API of Kubernetes with one Lease, over TLS, and stricter than the real one.

It refuses what the real one lets pass: a PUT without ``resourceVersion``, unknown fields, clear text.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME, NAMESPACE = "draftproof-demo-rollout", "models"
_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_SPEC: dict[str, Callable[[Any], bool]] = {
    "holderIdentity": lambda value: isinstance(value, str) and bool(value),
    "leaseDurationSeconds": lambda value: type(value) is int and value > 0,
    "leaseTransitions": lambda value: type(value) is int and value >= 0,
    "acquireTime": lambda value: bool(_TIME.fullmatch(value)),
    "renewTime": lambda value: bool(_TIME.fullmatch(value)),
}


class StrictApi:
    """The API and its Lease.

    Attributes:
        account: Folder as a pod of the service account has it.
        url: Address.
        token: Token that it accepts.
        lease: The Lease.
        refused: Why it refused what a controller must not send.
        holders: Every new holder, in order.
        is_silent: Whether it answers nothing.
        after: Called after a PUT was stored, before it is answered.
    """

    def __init__(self, folder: Path) -> None:
        self.account = folder
        self.url = ""
        self.token = "first token"
        self.lease: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"},
        }
        self.refused: list[str] = []
        self.holders: list[str] = []
        self.is_silent = False
        self.after: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @property
    def holder(self) -> str:
        return str((self.lease.get("spec") or {}).get("holderIdentity", ""))

    def give_token(self, token: str) -> None:
        """Exchange the token of the service account."""
        self.token = token
        (self.account / "token").write_text(token)

    def change(self, **spec: Any) -> None:
        """Change the Lease as another client does."""
        with self._lock:
            self._store({**self.lease, "spec": {**(self.lease.get("spec") or {}), **spec}})

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Any]:
        if token != f"Bearer {self.token}":
            return 401, {"reason": "Unauthorized"}
        if path != _PATH or method not in ("GET", "PUT"):
            return 403, {"reason": "Forbidden"}
        with self._lock:
            if method == "GET":
                return 200, self.lease
            given = json.loads(body)
            if why := self._invalid(given):
                self.refused.append(why)
                return 422, {"reason": why}
            if given["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                return 409, {"reason": "Conflict"}
            self._store(given)
            found = self.lease
        self.after()
        return 200, found

    def _store(self, lease: dict[str, Any]) -> None:
        before = self.holder
        number = int(self.lease["metadata"]["resourceVersion"]) + 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": f"{number}"}}
        if self.holder not in (before, ""):
            self.holders.append(self.holder)

    def _invalid(self, given: dict[str, Any]) -> str:
        if given.keys() != {"apiVersion", "kind", "metadata", "spec"}:
            return f"fields {sorted(given)}"
        fixed = self.lease["metadata"].keys()
        if given["metadata"].keys() != fixed or any(
            given["metadata"][key] != self.lease["metadata"][key] for key in fixed - {"resourceVersion"}
        ):
            return f"metadata {given['metadata']}"
        wrong = [key for key, value in given["spec"].items() if key not in _SPEC or not _SPEC[key](value)]
        return f"spec {wrong}" if wrong else ""


class _Handler(BaseHTTPRequestHandler):
    api: StrictApi

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.api.is_silent:
            self.close_connection = True
            return
        status, document = self.api.answer(
            self.command, self.path, self.headers.get("Authorization", ""), body
        )
        if self.api.is_silent:
            self.close_connection = True  # the answer is lost
            return
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _do

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[StrictApi]:
    """Run the API."""
    api = StrictApi(folder)
    api.give_token(api.token)
    (folder / "namespace").write_text(NAMESPACE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificates(folder))
    handler = type("Handler", (_Handler,), {"api": api})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        api.url = f"https://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()


def _certificates(folder: Path) -> Path:
    """Write ``ca.crt``; return a file with the certificate that it signed for the API, and its key."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])

    def certificate(key: ec.EllipticCurvePrivateKey, name: x509.Name, *, is_authority: bool) -> bytes:
        now = datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (folder / "ca.crt").write_bytes(certificate(authority, issuer, is_authority=True))
    api = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api")])
    private = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "api.pem"
    path.write_bytes(certificate(own, api, is_authority=False) + private)
    return path
