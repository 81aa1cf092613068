"""Tests of the playground in a real browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import MODEL, get, url_of
from tests.support.headless_browser import Browser, find_browser

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

PROMPT = "def area(radius):\n"


@pytest.fixture
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed")
    with Browser(program) as opened:
        yield opened


def wait_for(browser: Browser, script: str) -> None:
    deadline_s = time.monotonic() + 120
    while not browser.value(script):
        assert time.monotonic() < deadline_s, browser.value("document.body.innerText")
        time.sleep(0.05)


def ask(browser: Browser, prompt: str, num_tokens: int) -> None:
    browser.value(f"""document.getElementById("prompt").value = {prompt!r};
        document.getElementById("max-tokens").value = {num_tokens};
        document.getElementById("run").click()""")


def text_of(browser: Browser, section: str) -> str:
    return str(browser.value(f"document.querySelector('#{section} pre').textContent"))


IS_DONE = "!document.getElementById('run').disabled && document.getElementById('stop').disabled"


def test_it_colours_the_answer_of_the_router_and_compares_the_target_alone(
    browser: Browser, door: Server, router: Client
) -> None:
    browser.open(f"{url_of(door)}/")
    wait_for(browser, f"document.getElementById('model').textContent === '{MODEL}'")
    ask(browser, PROMPT, 90)
    wait_for(browser, "document.getElementById('verdict').textContent")
    wait_for(browser, IS_DONE)
    expected = router.generate(CompletionRequest(PROMPT, max_tokens=90), "router")
    assert text_of(browser, "speculative") == text_of(browser, "alone") == expected.text
    assert "The same text." in browser.value("document.getElementById('verdict').textContent")
    drafted = browser.value(
        "[...document.querySelectorAll('#speculative pre .draft_model, #speculative pre .lookup')].length"
    )
    assert (drafted > 0) == any(expected.accepted_mask)
    assert browser.value("[...document.querySelectorAll('#alone pre :not(.target)')].length") == 0
    asked = [each for each in browser.complaints if not each.startswith(f"asked for {url_of(door)}/")]
    assert [each for each in asked if "data:" not in each] == []


def test_what_a_schema_forces_is_coloured(browser: Browser, door: Server) -> None:
    browser.open(f"{url_of(door)}/")
    schema = {"properties": {"a_long_name_of_a_field": {"enum": [1, 2]}}, "additionalProperties": False}
    schema |= {"type": "object", "required": list(schema["properties"])}
    browser.value(f"document.getElementById('schema').value = {json.dumps(json.dumps(schema))}")
    ask(browser, PROMPT, 90)
    wait_for(browser, "document.getElementById('verdict').textContent")
    forced = browser.value(
        "[...document.querySelectorAll('#speculative .grammar')].map(e => e.textContent).join('')"
    )
    assert len(forced) > 8 and set(forced) <= set(json.dumps(schema))
    assert json.loads(text_of(browser, "speculative"))["a_long_name_of_a_field"] in (1, 2)
    assert text_of(browser, "speculative") == text_of(browser, "alone")
    browser.value("document.getElementById('schema').value = '{'")
    ask(browser, PROMPT, 90)
    wait_for(browser, "document.getElementById('error').textContent.includes('JSON')")


def test_chat_keeps_the_conversation(browser: Browser, door: Server) -> None:
    browser.open(f"{url_of(door)}/")
    browser.value("document.getElementById('tab-chat').click()")
    for number, message in enumerate(("Hello", "<b>again</b>"), start=1):
        ask(browser, message, 20)
        wait_for(browser, f"document.querySelectorAll('#conversation li').length === {2 * number}")
        wait_for(browser, IS_DONE)
    said = browser.value("document.querySelectorAll('#conversation li')[2].textContent")
    assert said == "user<b>again</b>"
    assert browser.value("document.getElementById('error').hidden")


def test_an_answer_can_be_stopped_and_an_error_is_shown(browser: Browser, door: Server) -> None:
    browser.open(f"{url_of(door)}/")
    # In the page, because the whole answer may arrive before the browser is told to click.
    browser.value("""new MutationObserver((_, observer) => {
            observer.disconnect();
            document.getElementById("stop").click();
        }).observe(document.querySelector("#speculative pre"), { childList: true })""")
    ask(browser, PROMPT, 480)
    wait_for(browser, "document.getElementById('error').textContent")
    wait_for(browser, IS_DONE)
    assert browser.value("document.getElementById('error').textContent") == "Stopped."
    ask(browser, PROMPT, 100_000)
    wait_for(browser, "document.getElementById('error').textContent.includes('max_tokens')")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_nothing_is_wider_than_the_window(browser: Browser, door: Server, width: int, is_dark: bool) -> None:
    browser.open(f"{url_of(door)}/", is_dark, width)
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    shown = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (shown == "rgb(255, 255, 255)") is not is_dark


def test_the_page_may_load_nothing_from_elsewhere(browser: Browser, door: Server) -> None:
    policy = get(door, "/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    browser.open(f"{url_of(door)}/")
    browser.value("""window.refused = 0;
        addEventListener("securitypolicyviolation", () => window.refused += 1);
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
        fetch("https://example.org/").catch(() => 0); undefined""")
    wait_for(browser, "window.refused === 2")
    assert browser.value("window.ran === undefined")
