"""The smallest pair on a real GPU: built by trtllm-build, served by NVIDIA's Triton, verified, written down.

Runs only commands that the tests of CPU machines run on stand-ins too. Leaves ``docs/results/gpu-*.json``.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.deploy import Ports
from pipelines.deploy.gpu_doctor import READY, gpu_findings
from pipelines.deploy.gpus import visible_gpus
from tests.conftest import REPOSITORY_ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HOUR_S = 3600
RECIPE = "demo"


def make(target: str, ports: Ports, **settings: str) -> subprocess.CompletedProcess[str]:
    """One target for TensorRT-LLM; its log goes to the test's output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    numbers = {f"{name.upper()}_PORT": str(port) for name, port in dataclasses.asdict(ports).items()}
    chosen = {"RECIPE": RECIPE, "RUNTIME": "tensorrt_llm", **numbers, **settings}
    command = ["make", target, *(f"{name}={value}" for name, value in chosen.items())]
    done = subprocess.run(
        command,
        cwd=REPOSITORY_ROOT,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=HOUR_S,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def served() -> Iterator[Ports]:
    """Ports of a server on freshly built engines."""
    what_follows = gpu_findings()[-1].value
    if what_follows != READY:
        pytest.skip(what_follows)
    faulthandler.cancel_dump_traceback_later()  # pytest's limit per test; a build takes longer
    ports = Ports.free()
    assert make("engines", ports).returncode == 0
    try:
        assert make("serve", ports).returncode == 0
        yield ports
    finally:
        make("stop", ports)


def test_generate_answers_as_generate_target(served: Ports) -> None:
    done = make("verify", served, ARGS="--quick --only equality")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    document["gpus"] = [dataclasses.asdict(gpu) for gpu in visible_gpus()]
    path = REPOSITORY_ROOT / "docs" / "results" / f"gpu-verify-{RECIPE}.json"
    path.write_text(json.dumps(document, indent=4) + "\n", encoding="utf-8")
    assert document["verdict"] in ("pass", "inconclusive"), f"see {path}"
