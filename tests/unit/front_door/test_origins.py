"""Tests of web pages: those of other sites are refused unless the operator allows them."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from pipelines.errors import ForbiddenError
from pipelines.front_door.guarding import Origins

ALLOWED = "https://chat.example.org"


def request_of(host: str, method: str = "POST", **headers: str) -> web.Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request(method, "/v1/completions", headers={"Host": host, **named})


HERE, OWN, EVIL = "127.0.0.1:9000", "http://127.0.0.1:9000", "http://evil.example"


@pytest.mark.parametrize(
    ("host", "origin", "site", "is_answered"),
    [
        (HERE, "", "", True),
        ("models.example.org", "", "", True),
        (HERE, "", "none", True),
        (HERE, OWN, "same-origin", True),
        ("localhost:9000", "http://localhost:9000", "", True),
        ("[::1]:9000", "https://[::1]:9000", "same-origin", True),
        (HERE, "", "same-origin", True),
        ("models.example.org", ALLOWED, "cross-site", True),
        # The server's own page behind a name that the operator allows.
        ("chat.example.org", "", "same-origin", True),
        ("chat.example.org", ALLOWED, "same-origin", True),
        (HERE, "https://evil.example", "", False),
        (HERE, "null", "", False),
        (HERE, "http://127.0.0.1:8080", "", False),
        (HERE, "", "cross-site", False),
        (HERE, "", "same-site", False),
        (HERE, OWN, "cross-site", False),
        # A name that was made to resolve to this server.
        ("evil.example", EVIL, "same-origin", False),
        ("evil.example", "", "same-origin", False),
        ("[::1", "http://[::1", "", False),
        ("", "http://", "", False),
        (HERE, ALLOWED + ".", "", False),
        ("chat.example.org", "", "same-site", False),
        ("chat.example.org:9000", "", "same-origin", False),
    ],
)
def test_programs_own_pages_and_allowed_ones_are_answered_and_others_refused(
    host: str, origin: str, site: str, is_answered: bool
) -> None:
    sent = {"Origin": origin, "Sec-Fetch-Site": site}
    asked = request_of(host, **{name: value for name, value in sent.items() if value})
    with nullcontext() if is_answered else pytest.raises(ForbiddenError):
        Origins((ALLOWED,)).check(asked)


def test_only_allowed_pages_may_read_and_ask_before() -> None:
    async def headers_for(origins: Origins, request: web.Request) -> dict[str, str]:
        response = web.Response()
        await origins.add_headers(request, response)
        return dict(response.headers)

    sent = "authorization,content-type,x-stainless-arch"  # by OpenAI's client
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": sent}
    allowed = request_of("a", "OPTIONS", Origin=ALLOWED, **asked)
    other = request_of("a", "OPTIONS", Origin="https://evil.example", Access_Control_Request_Method="POST")
    some, nobody = Origins((ALLOWED,)), Origins(())
    answer = some.preflight(allowed)
    assert answer is not None and answer.headers["Access-Control-Allow-Headers"] == sent
    assert some.preflight(other) is nobody.preflight(allowed) is None
    found = asyncio.run(headers_for(some, allowed))
    assert (found["Access-Control-Allow-Origin"], found["Vary"]) == (ALLOWED, "Origin")
    assert "X-Request-Id" in found["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Origin" not in asyncio.run(headers_for(some, other))
    assert "Access-Control-Allow-Origin" not in asyncio.run(headers_for(nobody, allowed))
