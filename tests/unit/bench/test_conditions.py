"""Tests of the conditions that are recorded with every result."""

from __future__ import annotations

import shlex

from pipelines.bench.reporting.conditions import conditions


def test_the_recorded_command_can_be_pasted_into_a_shell() -> None:
    arguments = ["--url", "", "--sets", "code", "--text", "it's $HOME"]
    command = conditions("pipelines.bench", arguments)["command"]
    assert shlex.split(command) == ["python", "-m", "pipelines.bench", *arguments]
