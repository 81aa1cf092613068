"""Tests of the measurement of a server's memory, and of its table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.server_memory import VOCAB_SIZE, Shape, process_memory, write_checkpoint
from build.networks.source import open_network
from docs.figures.memory import server_memory

CONDITIONS = {
    "cpu": "EPYC",
    "num_cores": 2,
    "load_average_1min": 1.0,
    "packages": {"openvino": "2026.4.1"},
    "python": "3.11",
    "date": "2026-11-23",
    "git_sha": "0123456789ab",
    "command": "python -m benchmarks.server_memory",
}


def test_the_checkpoint_is_one_that_the_compiler_reads(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", Shape(2, 128, 256, 2, 1), 0)
    network = open_network(tmp_path / "target").read()
    assert network.config.vocab_size == VOCAB_SIZE
    assert network.lm_head.weight is network.embedding
    assert network.layer(1).fc.weight.shape == (256, 128)


def test_processes_of_processes_are_read() -> None:
    code = "import sys; held = b'x' * 50_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        found = list(process_memory(os.getpid()))
        child.stdin.close()
    assert any(50 < process.anonymous <= process.rss < 200 for process in found[1:])


def test_the_table_has_a_line_for_each_server() -> None:
    processes = [
        {"name": name, "rss": 100.0 * rss} for rss, name in enumerate(("python", "target", "speculative"))
    ]
    server = {
        "quantization": "int8",
        "engine_mb": {"target": 500.0, "draft": 100.0},
        "cache_mb": {"target": 1000.0, "draft": 250.0},
        "rss_mb": 350.0,
        "processes": processes,
        "engines": {role: {"num_parameters": 4.52e8} for role in ("target", "draft")},
    }
    text = server_memory({"servers": [server, {**server, "quantization": "none"}], "conditions": CONDITIONS})
    assert "| INT8 | 0.60 GB | 1.25 GB | 0.20 GB | 0.15 GB | 0.35 GB |" in text
    assert "| float32 |" in text
