"""Tests of the free memory of a server: as its process sees it, published, and as a rollout reads it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from pipelines import available_resources
from pipelines.available_resources import available_bytes, published_bytes
from pipelines.canary.checks.server_figures import FIGURE, free_bytes
from pipelines.errors import CanaryError
from pipelines.triton.backend.gauges import _DESCRIPTIONS

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (None, 8000 * 1024),
        ({"memory.max": "max"}, 8000 * 1024),
        ({"memory.max": str(5000 * 1024)}, (5000 - 3000 + 500) * 1024),
        ({"memory.max": str(50_000 * 1024)}, 8000 * 1024),
        ({"memory.max": str(5000 * 1024), "memory.stat": "anon 1"}, 8000 * 1024),
    ],
)
def test_what_is_free_is_the_containers_if_it_has_less(
    tmp_path: Path, cgroup: dict[str, str] | None, expected: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\nHugePages_Total:  0\n")
    files = {"memory.current": str(3000 * 1024), "memory.stat": f"anon 1\ninactive_file {500 * 1024}\n"}
    for name, text in {**files, **cgroup}.items() if cgroup is not None else ():
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path / "meminfo", tmp_path) == expected


def test_small_changes_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update costs a round trip to Triton; the published value is never more than what is free."""
    monkeypatch.setattr(available_resources, "available_bytes", lambda: 200 * MIB + 1)
    assert published_bytes() == 192 * MIB


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Let a metrics port answer with a text; return its address."""
    request = httpx.Request("GET", "http://x/metrics")
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text=text, request=request))
    return str(request.url)


def test_the_least_of_what_a_server_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIGURE in _DESCRIPTIONS
    text = f"# HELP {FIGURE} x\n" + "".join(
        f'{FIGURE}{{model="{model}"}} {value}\n'
        for model, value in (("router", "6.7108864e+08"), ("generate", "603979776.000000"))
    )
    assert free_bytes(answering(monkeypatch, text)) == 603979776


@pytest.mark.parametrize("text", ["", f"# HELP {FIGURE} x\n", f'{FIGURE}{{model="router"}} much\n'])
def test_a_server_that_does_not_say_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A server of another version, or without a router, does not report its free memory."""
    with pytest.raises(CanaryError, match="available memory of the server cannot be read"):
        free_bytes(answering(monkeypatch, text))


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(CanaryError, match=r"available memory of the server cannot be read.*ConnectError"):
        free_bytes("http://127.0.0.1:1/metrics")
