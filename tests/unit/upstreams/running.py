"""Runs the service in a process, as users do, in front of stand-in servers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from pipelines.canary.controller.phases import ENDED, PREPARING
from pipelines.canary.controller.plan import read_plan
from pipelines.canary.controller.state import Store
from pipelines.canary.judge.limits import read_limits
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.canary.run_files import state_file
from pipelines.deploy.triton.place import read_key
from pipelines.errors import CanaryError
from pipelines.upstreams.request import RESPONSES
from pipelines.upstreams.settings import DEFAULT_PLAN
from tests.conftest import REPOSITORY_ROOT

_WITHIN_S = 120.0

_PROGRAM = """
import sys
from pathlib import Path
from pipelines.upstreams import __main__ as program
program.run_directory = lambda name: Path(sys.argv[1]) / name
sys.exit(program.main(sys.argv[2:]))
"""


class Running:
    """A running service."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.folder = folder
        self.state = folder / "service"
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"listening on (\S+)", line)
        assert found, line + (process.communicate(timeout=120)[0] or "")
        self.url = found[1]

    def choosing(self, arm: str) -> dict[str, str]:
        """Return the headers with which an operator chooses an arm."""
        return {"X-Draftproof-Arm": arm, "draftproof-key": read_key(self.state)}

    def ask(self, prompt: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        asked = {"prompt": prompt, "max_tokens": 8}
        if path == RESPONSES:
            asked = {"input": prompt, "max_output_tokens": 8}
        body = {"model": "stand-in", **asked, "temperature": 0, **fields}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=120, trust_env=False)

    def stop(self) -> tuple[int, str]:
        """Stop it; returns exit code and what it wrote after its first line."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=120)
        return self._process.returncode, said


@contextmanager
def running(
    folder: Path, stable: dict[str, Any], candidate: dict[str, Any] | None = None, *arguments: str
) -> Iterator[Running]:
    """Run the service during the block.

    Args:
        folder: Folder of settings and state; may have ``plan.yaml``.
        stable: Settings of the server in service without its name.
        candidate: Settings of the candidate, likewise; its name may be among them.
    """
    settings: dict[str, Any] = {"name": "service", "stable": {"name": "old", **stable}}
    settings["plan"] = "plan.yaml" if (folder / "plan.yaml").is_file() else ""
    if candidate:
        settings["candidate"] = {"name": "new", **candidate}
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-c", _PROGRAM, str(folder), "--settings", str(path), "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=REPOSITORY_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Running(process, folder)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def figures(service: Running) -> dict[str, float]:
    """Return the samples of a service's metrics, by name and labels."""
    page = httpx.get(f"{service.url}/metrics", trust_env=False).text
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name.removeprefix("draftproof_arm_"): float(value) for name, _, value in lines}


def record_of(service: Running) -> RolloutRecord | None:
    try:
        store = Store.existing(state_file(service.state))
        try:
            return store.record()
        finally:
            store.close()
    except CanaryError:
        return None


def has_begun(service: Running) -> None:
    """Wait until the candidate gets replays."""
    ends_at_s = time.monotonic() + _WITHIN_S
    while (record := record_of(service)) is None or record.phase in PREPARING:
        assert time.monotonic() < ends_at_s, record and record.phase
        time.sleep(0.5)


def ended(service: Running) -> RolloutRecord:
    """Wait until the rollout has ended."""
    ends_at_s = time.monotonic() + _WITHIN_S
    while time.monotonic() < ends_at_s:
        record = record_of(service)
        if record is not None and record.phase in ENDED:
            return record
        time.sleep(1.0)
    raise AssertionError(f"not ended: {record and (record.phase, judgement(record))}")


def write_plan(folder: Path, limits: dict[str, Any] | None = None, **changes: Any) -> None:
    """Write a plan of a few seconds, and its limits, into a folder."""
    plan = {**_document(vars(read_plan(DEFAULT_PLAN))), "limits": "limits.yaml"}
    limits_of_replays = {"share": 1.0, "max_per_s": 500, "max_in_flight": 8}
    shadow = {**plan["shadow"], **limits_of_replays, "min_pairs": 60, "bake_s": 0}
    steps = [{"weight": 0.4, "min_pairs": 20, "bake_s": 0}]
    quick = {"tick_s": 1.0, "lease_s": 5.0, "watch_s": 0.5, "drain_s": 5.0, "idle_s": 120.0, "hold_s": 120.0}
    plan = {**plan, "shadow": shadow, "steps": steps, **quick, **changes}
    lax = {"pass_below": 8.0, "rollback_above": 8.0}  # a busy machine says nothing about times
    wide = {"pass_below": 0.5, "rollback_above": 0.4}
    given = {
        **_document(vars(read_limits(DEFAULT_PLAN.with_name("limits.yaml")))),
        "min_requests": 10,
        "quantile": 0.5,
        "answers": {"pass_below": 0.2, "rollback_above": 0.02},
        "answers_repeated": None,
        "errors": {"pass_below": 0.3, "rollback_above": 0.02},
        **dict.fromkeys(("timeouts", "goodput", "pauses"), wide),
        **dict.fromkeys(("ttft", "itl", "e2e_tail"), lax),
        "pause_s": 30.0,
        **(limits or {}),
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    (folder / "limits.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")


def _document(value: Any) -> Any:
    return json.loads(json.dumps(value, default=vars))
