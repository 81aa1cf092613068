"""Tests of web pages: those of other sites are refused unless the operator allows them."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from pipelines.errors import ForbiddenError
from pipelines.front_door.guarding import Origins

ALLOWED = "https://chat.example.org"


def request_of(host: str, method: str = "POST", **headers: str) -> web.Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request(method, "/v1/completions", headers={"Host": host, **named})


@pytest.mark.parametrize(
    "request_",
    [
        request_of("127.0.0.1:9000"),
        request_of("models.example.org"),
        request_of("127.0.0.1:9000", Sec_Fetch_Site="none"),
        request_of("127.0.0.1:9000", Origin="http://127.0.0.1:9000", Sec_Fetch_Site="same-origin"),
        request_of("localhost:9000", Origin="http://localhost:9000"),
        request_of("[::1]:9000", Origin="https://[::1]:9000", Sec_Fetch_Site="same-origin"),
        request_of("127.0.0.1:9000", Sec_Fetch_Site="same-origin"),
        request_of("models.example.org", Origin=ALLOWED, Sec_Fetch_Site="cross-site"),
        # The server's own page behind a name that the operator allows.
        request_of("chat.example.org", "GET", Sec_Fetch_Site="same-origin"),
        request_of("chat.example.org", Origin=ALLOWED, Sec_Fetch_Site="same-origin"),
    ],
)
def test_programs_own_pages_and_allowed_ones_are_answered(request_: web.Request) -> None:
    Origins((ALLOWED,)).check(request_)


@pytest.mark.parametrize(
    "request_",
    [
        request_of("127.0.0.1:9000", Origin="https://evil.example"),
        request_of("127.0.0.1:9000", Origin="null"),
        request_of("127.0.0.1:9000", Origin="http://127.0.0.1:8080"),
        request_of("127.0.0.1:9000", Sec_Fetch_Site="cross-site"),
        request_of("127.0.0.1:9000", Sec_Fetch_Site="same-site"),
        request_of("127.0.0.1:9000", Origin="http://127.0.0.1:9000", Sec_Fetch_Site="cross-site"),
        # A name that was made to resolve to this server.
        request_of("evil.example:9000", Origin="http://evil.example:9000", Sec_Fetch_Site="same-origin"),
        request_of("evil.example:9000", Sec_Fetch_Site="same-origin"),
        request_of("[::1", Origin="http://[::1"),
        request_of("", Origin="http://"),
        request_of("127.0.0.1:9000", Origin=ALLOWED + "."),
        request_of("chat.example.org", Sec_Fetch_Site="same-site"),
        request_of("chat.example.org:9000", Sec_Fetch_Site="same-origin"),
    ],
)
def test_pages_of_other_sites_are_refused(request_: web.Request) -> None:
    with pytest.raises(ForbiddenError):
        Origins((ALLOWED,)).check(request_)


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
