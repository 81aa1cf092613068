"""The steps of the GPU day, in the order in which an hour on a rented machine is best spent."""

from __future__ import annotations

import sys
from dataclasses import asdict

from pipelines.deploy.ports import Ports
from tests.gpu.step import Step

_MINUTE_S = 60.0
_RUNTIME = ("--runtime", "tensorrt_llm")


def day_steps(recipe: str, ports: Ports) -> tuple[Step, ...]:
    """Everything but stopping the server; a second run finds the engines built."""
    of = ("--recipe", recipe)
    served = ("--url", f"grpc://127.0.0.1:{ports.grpc}", *of)
    listening = tuple(f"--{name}-port={port}" for name, port in asdict(ports).items())
    # Name; what it shows; command; limit in minutes; the steps that it needs.
    table: tuple[tuple[str, str, tuple[str, ...], float, tuple[str, ...]], ...] = (
        ("machine", "GPUs, driver, containers", _probe("machine", *of), 2, ()),
        ("quantize", "ModelOpt makes checkpoints", _module("build.quantize", *of, *_RUNTIME), 20, ()),
        (
            *("preflight", "rules and memory plan", _module("build.preflight", *of, *_RUNTIME), 5),
            ("quantize",),
        ),
        (
            *("engines", "trtllm-build takes our checkpoints and flags, and the result is compared"),
            *(_module("build.engines", *of, *_RUNTIME), 40),  # the first run pulls an image of 14 GB
            ("machine", "quantize"),
        ),
        (
            *("repository", "the repository is rendered", _module("build.repository", *of, *_RUNTIME), 5),
            ("engines",),
        ),
        (
            *("serve", "NVIDIA's Triton loads both engines behind our models"),
            *(_module("pipelines.deploy", "serve", *of, *_RUNTIME, *listening), 35),  # its own limit is 30
            ("repository",),
        ),
        ("memory", "memory in use beside the plan", _probe("memory", *served), 1, ("serve",)),
        (
            *("sampling", "sampled speculation works, and a refusal does not stop greedy speculation"),
            *(_probe("sampling", *served), 5, ("serve",)),
        ),
        (
            *("verify", "generate answers as generate_target does"),
            *(
                _module("pipelines.validation", *of, "--quick", "--only", "equality", "--json"),
                20,
                ("serve",),
            ),
        ),
        (
            *("reference", "the target answers as transformers does on the CPU"),
            *(_module("pipelines.validation", *of, "--reference", "--json"), 20, ("serve",)),
        ),
        (
            *("bench", "speed of generate and generate_target"),
            *(_module("pipelines.bench", *of, "--quick", "--json"), 20, ("serve",)),
        ),
    )
    return tuple(
        Step(name, shows, command, minutes * _MINUTE_S, needs)
        for name, shows, command, minutes, needs in table
    )


def stop_step(recipe: str) -> Step:
    """Stop the server, whatever came before."""
    command = _module("pipelines.deploy", "stop", "--recipe", recipe)
    return Step("stop", "the server ends in time", command, 5 * _MINUTE_S)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command behind a target of ``make``."""
    return (sys.executable, "-m", name, *arguments)


def _probe(name: str, *arguments: str) -> tuple[str, ...]:
    return _module("tests.gpu.probe", name, *arguments)
