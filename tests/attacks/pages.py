"""What hostile pages and clients send over HTTP: headers of pages of other sites, names, and long bodies."""

from __future__ import annotations

FOREIGN_PAGES: tuple[dict[str, str], ...] = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},  # which a browser sends unasked
)
"""Headers of requests of pages of other sites."""

FOREIGN_HOSTS = (
    "rebound.evil.example",
    "rebound.evil.example:9000",
    "127.0.0.1.evil.example",
    "evil@127.0.0.1",
    "127.0.0.1/evil",
    "localhost.",
    "[::1",
)
"""Values of ``Host`` by which no server of ours is known: of a page whose name leads to it, or made up."""

REBOUND_PAGES: tuple[dict[str, str], ...] = tuple(
    {"Host": host, **headers}
    for host in FOREIGN_HOSTS[:2]
    for headers in ({}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{host}"})
)
"""Headers of requests of a page whose own name leads to the server."""


def long_key_bodies(num_bytes: int) -> tuple[bytes, ...]:
    """Return bodies of OpenAI's API with an unknown field, a value or a list of fields of this size."""
    long = b"a" * num_bytes
    return (
        b'{"prompt": "a", "%s!": 1}' % long,
        b'{"prompt": "a", "%s": 1}' % (long[: num_bytes // 2] + b"_" * (num_bytes // 2)),
        b'{"prompt": "a", "stream": "%s!"}' % long,
        b'{"prompt": "a", "stream_options": {"%s": 1}}' % long,
    )
