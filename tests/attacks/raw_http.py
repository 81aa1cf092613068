"""HTTP/1.1 by hand, because a real client refuses to send what an attacker sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterable
from typing import Any

from tests.attacks.attack import Address, Reply

TIMEOUT_S = 10.0
SHOWN_BYTES = 2000


def exchange(address: Address, pieces: Iterable[bytes]) -> Reply:
    """Send bytes unchanged, then read one response.

    Returns:
        Its status and the first 2,000 bytes of its body; ``closed`` if the server ended the connection
        without one, ``silent`` if it sent nothing for 10 s.
    """
    try:
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    connection.sendall(piece)
            response = http.client.HTTPResponse(connection)
            response.begin()
            return Reply(str(response.status), response.read(SHOWN_BYTES).decode(errors="replace"))
    except TimeoutError:
        return Reply("silent")
    except (OSError, http.client.HTTPException) as error:
        return Reply("closed", repr(error))


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    """Return a request line and headers; only Host is added."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", "")).encode("latin-1")


def post(address: Address, path: str, body: bytes, *headers: str) -> Reply:
    """Return a POST request with its body, its length and any further headers."""
    return exchange(address, [head(path, f"Content-Length: {len(body)}", *headers), body])


def get(address: Address, path: str, *headers: str) -> Reply:
    """Return a GET request for a path, which is not normalised."""
    return exchange(address, [head(path, *headers, method="GET")])


def chunked(address: Address, path: str, chunks: Iterable[bytes], *headers: str) -> Reply:
    """Return a POST request with a chunked body, given as it stands on the wire."""
    return exchange(address, [head(path, "Transfer-Encoding: chunked", *headers), *chunks, b"0\r\n\r\n"])


def generate_body(**changes: Any) -> bytes:
    """Return the body of a small well-formed generate request, with changes."""
    return json.dumps({"text_input": "x", "max_tokens": 2, **changes}).encode()


def infer_body(**changes: Any) -> dict[str, Any]:
    """Return a small well-formed KServe infer request, with changes."""
    inputs = [tensor("text_input", "BYTES", [1, 1], ["x"]), tensor("max_tokens", "INT32", [1, 1], [2])]
    return {"inputs": inputs, **changes}


def tensor(name: str, datatype: str, shape: list[int], data: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}
