"""HTTP requests with hostile framing: contradictory lengths, odd lines, connections kept half open."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.attacks.attack import Address, Attack, Reply
from tests.attacks.http import GENERATE, INFER
from tests.attacks.raw_http import chunked, exchange, generate_body, get, head

BODY = generate_body()
CHUNKS = b"1\r\nx\r\n0\r\n\r\n"
CHUNKED_BODY = b"%x\r\n%s\r\n" % (len(BODY), BODY)
HIDDEN = head("/v2/repository/index", "Content-Length: 0")


def raw(name: str, *pieces: bytes) -> Attack:
    return Attack(name, lambda address: exchange(address, pieces))


def path(name: str, target: str) -> Attack:
    return Attack(name, lambda address: get(address, target))


def slow_header(address: Address) -> Reply:
    """Slowloris: send one header line per second until the server closes the connection, for at most 20 s."""
    return exchange(address, _dripping(head(GENERATE)[:-2], b"X-Slow: 1\r\n"))


def slow_body(address: Address) -> Reply:
    """Send a body of 1,000 bytes at one byte per second."""
    return exchange(address, _dripping(head(GENERATE, "Content-Length: 1000"), b" "))


def _dripping(first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    for _ in range(20):
        time.sleep(1)
        yield then


SMUGGLING_ATTACKS = (
    Attack("chunks, one of them", lambda address: chunked(address, GENERATE, [CHUNKED_BODY])),
    raw("question with chunks", head("/v2", "Transfer-Encoding: chunked", method="GET"), CHUNKS),
    raw(
        "length and chunks",
        head(GENERATE, f"Content-Length: {len(CHUNKED_BODY) + 5}", "Transfer-Encoding: chunked"),
        CHUNKED_BODY + b"0\r\n\r\n",
    ),
    raw(
        "negative length and chunks",
        head(INFER, "Content-Length: -5", "Transfer-Encoding: chunked"),
        CHUNKED_BODY + b"0\r\n\r\n",
    ),
    raw(
        "length of 2 GiB and chunks",
        head(INFER, f"Content-Length: {2**31 - 1}", "Transfer-Encoding: chunked"),
        CHUNKED_BODY + b"0\r\n\r\n",
    ),
    raw(
        "length beyond INT32 and chunks",
        head(INFER, f"Content-Length: {2**32 - 5}", "Transfer-Encoding: chunked"),
        CHUNKED_BODY + b"0\r\n\r\n",
    ),
    raw("two lengths", head(GENERATE, "Content-Length: 1", f"Content-Length: {len(BODY)}"), BODY),
    raw("length with a plus sign", head(GENERATE, f"Content-Length: +{len(BODY)}"), BODY),
    raw("space before the colon", head(GENERATE, "Transfer-Encoding : chunked"), CHUNKED_BODY),
    raw("chunk of 2^64 bytes", head(GENERATE, "Transfer-Encoding: chunked"), b"f" * 17 + b"\r\n"),
    raw("request hidden behind the body", head(GENERATE, "Content-Length: 0") + HIDDEN),
    raw("100 pipelined requests", (head(GENERATE, f"Content-Length: {len(BODY)}") + BODY) * 100),
    raw("header of 1 MB", head(GENERATE, "X-Long: " + "x" * 10**6, "Content-Length: 0")),
    raw("10,000 headers", head(GENERATE, *(f"X-{i}: 1" for i in range(10_000)), "Content-Length: 0")),
    raw("path of 1 MB", head("/v2/models/" + "x" * 10**6, method="GET")),
    raw("HTTP/0.9", b"GET /v2\r\n\r\n"),
    raw("HTTP/2 without TLS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    raw("no HTTP at all", b"\x16\x03\x01" + b"\0" * 500),
    raw("upgrade to a WebSocket", head("/v2", "Upgrade: websocket", "Connection: Upgrade", method="GET")),
    raw("CONNECT", head("127.0.0.1:1", method="CONNECT")),
    raw("TRACE", head("/v2", method="TRACE")),
    path("control behind an encoded slash", "/v2%2Frepository%2Findex"),
    path("control behind dots", "/v2/models/../repository/index"),
    path("control behind a double slash", "//v2/repository/index"),
    path("control behind an absolute address", "http://localhost/v2/logging"),
    path("control with a query", "/v2/logging?x=/v2/health/ready"),
    path("control with a fragment", "/v2/logging#/v2/health/ready"),
    path("path with a NUL", "/v2/health/ready%00/../../logging"),
    path("path of half an escape", "/v2/%"),
    Attack("slow header", slow_header),
    Attack("slow body", slow_body),
)
