"""Tests of the guard against pages of other sites, and that all paths of all applications have it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pipelines.canary.gates import gates_application
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.front_door.application import FrontDoor
from pipelines.triton.gateway import metrics
from pipelines.triton.gateway.http_server import HttpServer, errors_in_json
from pipelines.upstreams.application import Application
from pipelines.upstreams.fleet.door import _waiting
from pipelines.web_application import guarded_application, metrics_page
from tests.attacks.pages import FOREIGN_HOSTS, FOREIGN_PAGES, REBOUND_PAGES
from tests.conftest import REPOSITORY_ROOT

OPEN, CLOSED = FrontDoorSettings(), FrontDoorSettings(keys="/none/keys.json")


def front_door(settings: FrontDoorSettings) -> web.Application:
    stand_in: Any = Mock(answer=AsyncMock(side_effect=ValueError))
    return FrontDoor(stand_in, stand_in, settings, stand_in, []).application()


def upstreams(settings: FrontDoorSettings) -> web.Application:
    stand_in: Any = Mock(answer=AsyncMock(side_effect=ValueError))
    return Application(stand_in, {}, settings, stand_in).application()


STAND_IN: Any = Mock(
    triton=Mock(index=AsyncMock(), metrics=AsyncMock(return_value="")),
    supervisor=Mock(unanswering=(), models=()),
)
# File that makes an application -> makes it, without and with API keys.
APPLICATIONS: dict[str, tuple[Callable[[], web.Application], ...]] = {
    "front_door/application.py": (lambda: front_door(OPEN), lambda: front_door(CLOSED)),
    "upstreams/fleet/door.py": (lambda: _waiting(OPEN), lambda: _waiting(CLOSED)),
    "upstreams/application.py": (lambda: upstreams(OPEN), lambda: upstreams(CLOSED)),
    "triton/gateway/http_server.py": (lambda: HttpServer(STAND_IN).application(),),
    "triton/gateway/metrics.py": (lambda: metrics.application(STAND_IN, None),),
    "canary/gates.py": (lambda: gates_application(STAND_IN),),
}
HEALTH = re.compile(r"/health|/v2/health/(live|ready)")
REFUSED = ("a page of another site may not use this server", "the server is not known by this name")


def test_there_are_no_other_applications() -> None:
    makes = re.compile(r"(?<!def )\b(guarded_application|openai_application|web\.Application|http\.server)\(")
    found: dict[str, set[str]] = {}
    for path in (REPOSITORY_ROOT / "pipelines").rglob("*.py"):
        if names := set(makes.findall(path.read_text(encoding="utf-8"))):
            found[str(path.relative_to(REPOSITORY_ROOT / "pipelines"))] = names
    assert found.pop("web_application.py") == {"web.Application"}
    assert found.pop("front_door/guarding.py") == {"guarded_application"}
    assert found.keys() == APPLICATIONS.keys()
    assert set().union(*found.values()) == {"guarded_application", "openai_application"}


def paths_of(application: web.Application) -> Iterator[tuple[str, str]]:
    """Yield method and an example of the path of each route."""
    for route in application.router.routes():
        assert route.resource is not None
        method = "POST" if route.method == "*" else route.method
        yield method, re.sub(r"\{\w+\}", "1", route.resource.canonical)


@pytest.mark.parametrize("name", APPLICATIONS)
async def test_no_path_of_any_application_answers_pages_of_other_sites(name: str) -> None:
    for make in APPLICATIONS[name]:
        application = make()
        async with TestClient(TestServer(application)) as client:

            async def ask(method: str, path: str, client: Any = client, **headers: str) -> tuple[int, str]:
                async with client.request(method, path, headers=headers) as reply:
                    return reply.status, "" if method == "HEAD" else await reply.text()

            for method, path in (*paths_of(application), ("GET", "/nothing"), ("OPTIONS", "/metrics")):
                for headers in (*FOREIGN_PAGES, *REBOUND_PAGES[1:3]):
                    status, text = await ask(method, path, **headers)
                    assert status == 403 and (method == "HEAD" or REFUSED[0] in text), (path, headers)
                for host in FOREIGN_HOSTS:
                    status, text = await ask(method, path, Host=host)
                    reason = {403: REFUSED[1], 503: "No server of the fleet has answered yet"}.get(status, "")
                    is_refused = status == 401 or (reason != "" and (method == "HEAD" or reason in text))
                    assert is_refused != bool(HEALTH.fullmatch(path)), (method, path, host, status)
                status, text = await ask(method, path)
                assert not any(each in text for each in REFUSED), (method, path)


ALLOWED = "https://chat.example.org"
HERE, OWN, EVIL = "127.0.0.1:9000", "http://127.0.0.1:9000", "http://evil.example"


async def asked(headers: dict[str, str], method: str = "GET", **options: Any) -> tuple[int, dict[str, str]]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    application = guarded_application(errors_in_json, **options)
    application.router.add_get("/", answer)
    async with (
        TestClient(TestServer(application)) as client,
        client.request(method, "/", headers=headers) as reply,
    ):
        return reply.status, dict(reply.headers)


@pytest.mark.parametrize(
    ("host", "origin", "site", "is_answered"),
    [
        (HERE, "", "", True),
        ("models.example.org", "", "", True),
        ("MODELS.example.org:443", "", "", True),
        (HERE, "", "none", True),
        (HERE, OWN, "same-origin", True),
        ("localhost:9000", "http://localhost:9000", "", True),
        ("[::1]:9000", "https://[::1]:9000", "same-origin", True),
        (HERE, "", "same-origin", True),
        ("any.example.org", ALLOWED, "cross-site", True),
        # The server's own page behind a name that the operator allows.
        ("chat.example.org", "", "same-origin", True),
        ("chat.example.org", ALLOWED, "same-origin", True),
        ("models.example.org", "https://models.example.org", "same-origin", True),
        (HERE, "https://evil.example", "", False),
        (HERE, "null", "", False),
        (HERE, "http://127.0.0.1:8080", "", False),
        (HERE, "", "cross-site", False),
        (HERE, "", "same-site", False),
        (HERE, OWN, "cross-site", False),
        # A name that was made to resolve to this server.
        ("evil.example", EVIL, "same-origin", False),
        ("evil.example", "", "same-origin", False),
        ("evil.example", "", "", False),
        ("[::1", "http://[::1", "", False),
        (HERE, ALLOWED + ".", "", False),
        ("chat.example.org", "", "same-site", False),
        ("chat.example.org:9000", "", "same-origin", False),
        ("evil@127.0.0.1", "", "", False),
        ("evil@127.0.0.1", "http://evil@127.0.0.1", "same-origin", False),
    ],
)
async def test_programs_own_pages_and_allowed_ones_are_answered_and_others_refused(
    host: str, origin: str, site: str, is_answered: bool
) -> None:
    sent = {"Host": host, "Origin": origin, "Sec-Fetch-Site": site}
    headers = {name: value for name, value in sent.items() if value}
    options = {"origins": [ALLOWED], "hosts": ["models.example.org"]}
    assert (await asked(headers, has_pages=True, **options))[0] == (200 if is_answered else 403)
    is_own = origin not in ("", ALLOWED) or site == "same-origin"
    without_pages = is_answered and (not is_own or origin == ALLOWED)
    assert (await asked(headers, **options))[0] == (200 if without_pages else 403)


async def test_only_allowed_pages_may_read_and_ask_before() -> None:
    sent = "authorization,content-type,x-stainless-arch"  # by OpenAI's client
    before = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": sent}
    status, found = await asked({"Origin": ALLOWED, **before}, "OPTIONS", origins=[ALLOWED])
    assert (status, found["Access-Control-Allow-Headers"]) == (204, sent)
    status, found = await asked({"Origin": ALLOWED}, origins=[ALLOWED])
    assert (status, found["Access-Control-Allow-Origin"], found["Vary"]) == (200, ALLOWED, "Origin")
    assert "X-Request-Id" in found["Access-Control-Expose-Headers"]
    for origin, origins in ((EVIL, [ALLOWED]), (ALLOWED, [])):
        for method in ("GET", "OPTIONS"):
            status, found = await asked({"Origin": origin, **before}, method, origins=origins)
            assert status == 403 and "Access-Control-Allow-Origin" not in found


@pytest.mark.parametrize("make", [front_door, upstreams])
async def test_metrics_need_a_key_unless_a_setting_opens_them(make: Callable[..., web.Application]) -> None:
    """A proxy on this machine that adds no header (``proxy_pass``) looks like a local scrape."""
    for settings, is_refused in ((CLOSED, True), (replace(CLOSED, open_metrics=True), False), (OPEN, False)):
        async with TestClient(TestServer(make(settings))) as client, client.get("/metrics") as reply:
            assert (reply.status == 401) is is_refused, settings


async def test_metrics_are_read_twice_a_second_or_ten_times_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty scrapes a second cost the two cores a sixth of a stream's speed."""
    now_s = 100.0
    monkeypatch.setattr("pipelines.web_application.time", Mock(monotonic=lambda: now_s))
    read = AsyncMock(side_effect=[*map(b"%d".__mod__, range(10)), *[OSError] * 20, b"10", b"11"])
    application = web.Application()
    application.router.add_get("/metrics", metrics_page(read))
    async with TestClient(TestServer(application)) as client:

        async def ask() -> tuple[int, bytes]:
            async with client.get("/metrics") as reply:
                return reply.status, await reply.read()

        assert [await ask() for _ in range(10)] == [(200, b"%d" % number) for number in range(10)]
        assert await asyncio.gather(*(ask() for _ in range(20))) == [(200, b"9")] * 20
        now_s += 0.6
        for _ in range(20):
            assert (await ask())[0] == 500, "no old page stands for one that could not be read"
        assert await ask() == await ask() == (200, b"10")
        now_s += 0.6
        assert await ask() == (200, b"11"), "failures do not keep a page for longer"


async def test_all_who_ask_for_metrics_during_a_reading_share_its_page_also_if_one_leaves() -> None:
    """Eight scrapers of a server that answered after 2 s each waited for all before them."""
    may_end = asyncio.Event()
    num_readings = 0

    async def read() -> bytes:
        nonlocal num_readings
        num_readings += 1
        await may_end.wait()
        return b"page"

    answer = metrics_page(read)
    asking = [asyncio.ensure_future(answer(Mock())) for _ in range(8)]
    await asyncio.sleep(0.01)
    asking.pop(0).cancel()
    await asyncio.sleep(0.01)
    may_end.set()
    assert [reply.body for reply in await asyncio.gather(*asking)] == [b"page"] * 7
    assert num_readings == 1
