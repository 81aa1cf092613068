"""Tests that traces cost nothing where no collector is set, and say what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipelines.errors import ServerStartError
from pipelines.front_door.observing.traces import ENDPOINT, Traces, are_wanted


def test_they_are_off_without_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert not are_wanted()
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    assert are_wanted()


def test_the_front_door_imports_opentelemetry_only_for_them() -> None:
    program = "import sys, pipelines.front_door.__main__; print('opentelemetry' in str(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_missing_packages_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ServerStartError, match=r"make otel.*OTEL_EXPORTER_OTLP_ENDPOINT"):
        Traces("demo")
