"""Tests of serving the demonstration pair with engines of others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.other_servers.engines import Serving
from pipelines.errors import PeerError
from tests.support.fault_proxy import cut_streams_of


def test_the_last_chunk_with_text_is_cut_and_no_other() -> None:
    texts = ["a", "b", "", ""]
    chunks = [{"choices": [{"text": text, "finish_reason": None}]} for text in texts]
    events = [*(f"data: {json.dumps(chunk)}" for chunk in chunks), "data: [DONE]", ""]
    cut = cut_streams_of("\n\n".join(events).encode()).decode().split("\n\n")
    assert cut[0] == events[0] and cut[2:] == events[2:]
    assert json.loads(cut[1].removeprefix("data: "))["choices"][0]["text"] == ""


def test_a_server_that_ends_is_noticed_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    with process, pytest.raises(PeerError, match="exit code 7"):
        Serving("http://127.0.0.1:9", process, tmp_path / "log").wait()
