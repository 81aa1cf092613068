"""Tests of the playground in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import MODEL, get, post, url_of
from tests.support.headless_browser import Browser, find_browser

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

MESSAGE = "def area(radius):\n"
MARKDOWN = Path("pipelines/front_door/playground/markdown.js")


@pytest.fixture
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed")
    with Browser(program) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, door: Server) -> Browser:
    browser.open(f"{url_of(door)}/")
    wait_for(browser, f"document.getElementById('model').textContent === '{MODEL}'")
    return browser


def wait_for(browser: Browser, script: str) -> None:
    deadline_s = time.monotonic() + 120
    while not browser.value(script):
        assert time.monotonic() < deadline_s, browser.value("document.body.innerText")
        time.sleep(0.05)


def fill(browser: Browser, **values: Any) -> None:
    for field, value in values.items():
        browser.value(f"document.getElementById('{field}').value = {json.dumps(value)}")


def press(browser: Browser, key: str, **modifiers: bool) -> bool:
    """Press a key in the field of the message; returns whether the browser does what it usually does."""
    given = json.dumps({"key": key, "bubbles": True, "cancelable": True, **modifiers})
    browser.value("document.getElementById('prompt').focus()")
    return bool(browser.value(f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {given}))"))


def texts(browser: Browser, selector: str) -> list[str]:
    found = browser.value(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")
    return list(found)


IS_DONE = "document.getElementById('stop').ariaDisabled === 'true'"
ERROR = "document.getElementById('error')"


def test_a_chat_keeps_its_history_and_the_focus(page: Browser, door: Server) -> None:
    fill(page, system="Be short.", max_tokens=20, temperature=0.75, seed=3)
    page.value("""window.bodies = []; const asked = window.fetch;
        window.fetch = (path, options) => { bodies.push(options.body); return asked(path, options); }""")
    for number, said in enumerate(("Hello", "<b>again</b>"), start=1):
        fill(page, prompt=said)
        press(page, "Enter")
        wait_for(page, f"document.querySelectorAll('.compare').length === {number}")
        wait_for(page, IS_DONE)
        assert page.value("document.activeElement.id") == "prompt"
        assert page.value("document.activeElement.value") == ""
    assert texts(page, ".user .text") == ["Hello", "<b>again</b>"]
    body = json.loads(page.value("bodies[1]"))
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.75, 20, 3)
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    answered = post(door, "/v1/chat/completions", plain).json()["choices"][0]["message"]["content"]
    assert page.value("document.querySelectorAll('section')[1].querySelector('.text').textContent.trim()")
    assert page.value(
        f"markdown({json.dumps(answered)}, (b, e) => {json.dumps(answered)}.slice(b, e))"
        ".textContent === document.querySelectorAll('.markdown')[1].textContent"
    )
    assert page.value(f"{ERROR}.hidden")
    asked = [each for each in page.complaints if not each.startswith(f"asked for {url_of(door)}/")]
    assert [each for each in asked if "data:" not in each] == []
    page.value("document.getElementById('clear').click()")
    assert texts(page, "#conversation li") == []


def test_who_wrote_each_token_and_the_target_alone(page: Browser) -> None:
    fill(page, prompt=MESSAGE, max_tokens=90)
    press(page, "Enter")
    wait_for(page, "!!document.querySelector('.compare')")
    page.value("document.querySelector('.compare').click()")
    wait_for(page, "document.querySelector('.verdict').textContent")
    assert "The same text" in texts(page, ".verdict")[0]
    one, other = texts(page, "section .text")
    assert one == other
    end = r"\d+ % of the draft tokens accepted · (ended by itself|cut off at the most tokens)"
    assert re.search(f"{end}$", texts(page, ".figures")[0])
    sources = page.value(
        "[...document.querySelectorAll('section')].map(section => "
        "[...new Set([...section.querySelectorAll('span')].map(each => each.className))])"
    )
    assert set(sources[0]) >= {"target", "draft_model"} and sources[1] == ["target"]
    coloured = "getComputedStyle(document.querySelector('.text .target')).backgroundColor"
    shown = page.value(coloured)
    page.value("document.getElementById('colours').click()")
    assert page.value(coloured) != shown


def test_what_a_schema_forces_is_coloured(page: Browser) -> None:
    schema = {"properties": {"a_long_name_of_a_field": {"enum": [1, 2]}}, "additionalProperties": False}
    schema |= {"type": "object", "required": list(schema["properties"])}
    fill(page, prompt=MESSAGE, max_tokens=200, schema=json.dumps(schema))
    press(page, "Enter")
    wait_for(page, "!!document.querySelector('.compare')")
    forced = "".join(texts(page, ".text .grammar"))
    assert len(forced) > 8 and set(forced) <= set(json.dumps(schema))
    assert json.loads(texts(page, "section .text")[0])["a_long_name_of_a_field"] in (1, 2)
    fill(page, prompt=MESSAGE, schema="{")
    press(page, "Enter")
    wait_for(page, f"{ERROR}.textContent.startsWith('structured_outputs.json is not JSON: ')")


def test_stop_keeps_the_answer_and_an_error_keeps_the_message(page: Browser) -> None:
    # In the page, and a long answer, because a whole one may arrive before the browser is told to click.
    page.value("""const observer = new MutationObserver(() => {
            if (!document.querySelector("section .text")) return;
            observer.disconnect();
            document.getElementById("stop").click();
        }); observer.observe(document.getElementById("conversation"), { childList: true, subtree: true })""")
    long = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 240}
    fill(page, prompt=MESSAGE, max_tokens=480, schema=json.dumps(long))
    press(page, "Enter")
    wait_for(page, f"{IS_DONE} && !!document.querySelector('.compare')")
    assert texts(page, ".figures")[0].endswith(" % from drafts · stopped by you")
    assert page.value("conversation.length") == 2 and page.value(f"{ERROR}.hidden")
    page.value("document.querySelector('.compare').click()")
    wait_for(page, "document.querySelector('.verdict').textContent")
    assert "The same text" in texts(page, ".verdict")[0]
    fill(page, prompt="kept", max_tokens=100_000)
    press(page, "Enter")
    wait_for(page, f"{ERROR}.textContent.includes('max_tokens')")
    wait_for(page, IS_DONE)
    assert page.value("document.getElementById('prompt').value") == "kept"
    assert len(texts(page, "#conversation > li")) == 2


def test_shift_enter_is_a_new_line_and_so_is_enter_on_a_touch_screen(page: Browser) -> None:
    fill(page, prompt="said", max_tokens=2)
    assert press(page, "Enter", shiftKey=True)
    page.value("window.matchMedia = (query) => ({ matches: query === '(pointer: coarse)' }); undefined")
    assert press(page, "Enter")
    assert texts(page, "#conversation > li") == []
    assert not press(page, "Enter", ctrlKey=True)
    wait_for(page, f"{IS_DONE} && document.querySelectorAll('#conversation > li').length === 2")


def test_the_fields_of_sampling_show_what_counts_without_them(page: Browser, door: Server) -> None:
    defaults = get(door, "/v1/models").json()["data"][0]["default_sampling_params"]
    for field in ("temperature", "top_p", "top_k"):
        assert float(page.value(f"document.getElementById('{field}').placeholder")) == defaults[field]


@pytest.mark.parametrize("width", [1280, 390])
def test_settings_leave_the_conversation_whole(browser: Browser, door: Server, width: int) -> None:
    browser.open(f"{url_of(door)}/", width=width)
    browser.value("""document.getElementById("conversation").append(make("li", "", "x\\n".repeat(400)));
        document.querySelector("li").style.whiteSpace = "pre";
        document.getElementById("show-settings").click()""")
    browser.value("document.documentElement.scrollTop = 1e6")
    place = "document.querySelector({!r}).getBoundingClientRect().toJSON()"
    said, settings, form = (browser.value(place.format(each)) for each in ("li", "#settings", "form"))
    assert said["bottom"] <= form["top"]
    assert said["right"] <= settings["left"] or said["bottom"] <= settings["top"] < form["top"]
    assert width == 390 or form["top"] > 600


def test_code_is_copied(page: Browser) -> None:
    page.value("""window.copied = [];
        Object.defineProperty(navigator, "clipboard", { configurable: true, value: {
            writeText: async (text) => { copied.push(text); } } });
        const answer = new Answer("a", { messages: [] });
        answer.content = "```\\nx = 1\\n```";
        answer.isNew = true;
        answer.show();
        document.getElementById("conversation").append(answer.section);
        document.querySelector(".copy").click()""")
    wait_for(page, "document.querySelector('.copy').dataset.label === 'Copied'")
    assert page.value("copied[0]") == "x = 1\n"
    page.value("delete navigator.clipboard; document.querySelector('.copy').click()")
    assert page.value("document.querySelector('.text').textContent") == "x = 1\n"


@pytest.mark.parametrize(("button", "kept"), [("stop", "said"), ("clear", ""), ("Escape", "said")])
def test_before_the_first_token_only_stop_gives_the_message_back(
    page: Browser, button: str, kept: str
) -> None:
    page.value("""window.fetch = (path, { signal }) => new Promise((_, reject) =>
        signal.addEventListener("abort", () => reject(signal.reason))); undefined""")
    fill(page, prompt="said")
    press(page, "Enter")
    wait_for(page, "document.querySelectorAll('#conversation > li').length === 2")
    if button == "Escape":
        press(page, "Escape")
    else:
        page.value(f"document.getElementById('{button}').click()")
    wait_for(page, IS_DONE)
    assert page.value("document.getElementById('prompt').value") == kept
    assert texts(page, "#conversation > li") == []


def test_a_base_model_continues_texts(
    browser: Browser, door_pair: tuple[Path, Path], new_door: Callable[..., AbstractContextManager[Server]]
) -> None:
    chat = door_pair[1] / "chat.json"
    template = chat.read_bytes()
    chat.unlink()
    try:
        with new_door() as server:
            browser.open(f"{url_of(server)}/")
            wait_for(browser, "document.body.classList.contains('completion')")
            fill(browser, prompt=MESSAGE, temperature=0)
            press(browser, "Enter")
            wait_for(browser, f"{IS_DONE} && !!document.querySelector('.compare')")
            with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}") as client:
                expected = client.generate(CompletionRequest(MESSAGE, max_tokens=160))
            assert texts(browser, "section .text") == [expected.text]
            assert browser.value("document.getElementById('prompt').value") == MESSAGE
    finally:
        chat.write_bytes(template)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A *b*\n###### C", "<h3>A <em>b</em></h3><h6>C</h6>"),
        ("a **b `c**` d** `` e`f ``", "<p>a <strong>b <code>c**</code> d</strong> <code> e`f </code></p>"),
        ("**a `b`** ** c", "<p><strong>a <code>b</code></strong> ** c</p>"),
        ("2 * 3 * 4, **open, `open, a_b_c", "<p>2 * 3 * 4, **open, `open, a_b_c</p>"),
        ("```py\n  x = '<b>'\n\n# y\n```\nz", "<pre><code>  x = '&lt;b&gt;'\n\n# y\n</code></pre><p>z</p>"),
        ("```\nnot closed", "<pre><code>not closed\n</code></pre>"),
        ("```ls``` lists\nfiles", "<p><code>ls</code> lists\nfiles</p>"),
        ("~~~ a`b\nx\n~~~", "<pre><code>x\n</code></pre>"),
        ("````\n```\n````", "<pre><code>```\n</code></pre>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n\n   more\n   ```\n   x\n   ```\n4. b\n- c",
         '<ol start="3"><li>a<p>more</p><pre><code>x\n</code></pre></li><li>b</li></ol><ul><li>c</li></ul>'),
        ("<img src=x onerror=alert(1)> &amp;", "<p>&lt;img src=x onerror=alert(1)&gt; &amp;amp;</p>"),
        ("***\n**\n\n`", "<hr><p>**</p><p>`</p>"),
        ("a\n| b | *c* |\n|:--|--:|\n| `1` | 2\n| x\\|y |\n\nz",
         '<p>a</p><div class="table"><table><tr><th>b</th><th align="right"><em>c</em></th></tr><tr><td>'
         '<code>1</code></td><td align="right">2</td></tr><tr><td>x\\|y</td></tr></table></div><p>z</p>'),
        ("a | b\n--- | ---", '<div class="table"><table><tr><th>a</th><th>b</th></tr></table></div>'),
        ("a | b\n---\n| c", "<p>a | b</p><hr><p>| c</p>"),
        ("[a *b*](https://x.org/?q=1) [c](javascript:alert(1)) [d](//x)",
         '<p><a href="https://x.org/?q=1" target="_blank" rel="noopener noreferrer">a <em>b</em></a>'
         " [c](javascript:alert(1)) [d](//x)</p>"),
    ],
)  # fmt: skip
def test_markdown(browser: Browser, text: str, expected: str) -> None:
    browser.value(MARKDOWN.read_text(encoding="utf-8") + "; undefined")
    given = json.dumps(text)
    assert browser.value(f"markdown({given}, (b, e) => new Text({given}.slice(b, e))).innerHTML") == expected


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
