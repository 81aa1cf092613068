"""The steps of the GPU day, in the order in which an hour on a rented machine is best spent."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import NamedTuple

from pipelines.deploy.ports import Ports

_RUNTIME = ("--runtime", "tensorrt_llm")


class Step(NamedTuple):
    """A command, what it shows, its time limit, and the steps that it needs."""

    name: str
    shows: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()


def day_steps(recipe: str, ports: Ports) -> tuple[Step, ...]:
    """Everything but stopping the server; a second run finds the engines built."""
    of = ("--recipe", recipe)
    served = ("--url", f"grpc://127.0.0.1:{ports.grpc}", *of)
    listening = tuple(f"--{name}-port={port}" for name, port in asdict(ports).items())
    serve = _module("pipelines.deploy", "serve", *of, *_RUNTIME, *listening)
    equality = _module("pipelines.validation", *of, "--quick", "--only", "equality", "--json")
    reference = _module("pipelines.validation", *of, "--reference", "--json")
    return (
        Step("machine", "GPUs, driver, containers", _probe("machine", *of), 120),
        Step("quantize", "ModelOpt makes checkpoints", _module("build.quantize", *of, *_RUNTIME), 1200),
        Step(
            *("preflight", "rules and memory plan", _module("build.preflight", *of, *_RUNTIME), 300),
            ("quantize",),
        ),
        Step(
            *("engines", "trtllm-build takes our checkpoints and flags, and the result is compared"),
            *(_module("build.engines", *of, *_RUNTIME), 2400),  # the first run pulls an image of 14 GB
            ("machine", "quantize"),
        ),
        Step(
            *("repository", "the repository is rendered", _module("build.repository", *of, *_RUNTIME), 300),
            ("engines",),
        ),
        # Its own limit is half an hour.
        Step(
            *("serve", "NVIDIA's Triton loads both engines behind our models", serve, 2100, ("repository",))
        ),
        Step("memory", "memory in use beside the plan", _probe("memory", *served), 60, ("serve",)),
        Step(
            *("sampling", "sampled speculation works, and a refusal does not stop greedy speculation"),
            *(_probe("sampling", *served), 300, ("serve",)),
        ),
        Step("verify", "generate answers as generate_target does", equality, 1200, ("serve",)),
        Step("reference", "the target answers as transformers does on the CPU", reference, 1200, ("serve",)),
        Step(
            *("bench", "speed of generate and generate_target"),
            *(_module("pipelines.bench", *of, "--quick", "--json"), 1200, ("serve",)),
        ),
    )


def stop_step(recipe: str) -> Step:
    """Stop the server, whatever came before."""
    command = _module("pipelines.deploy", "stop", "--recipe", recipe)
    return Step("stop", "the server ends in time", command, 300)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command behind a target of ``make``."""
    return (sys.executable, "-m", name, *arguments)


def _probe(name: str, *arguments: str) -> tuple[str, ...]:
    return _module("tests.gpu.probe", name, *arguments)
