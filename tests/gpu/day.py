"""The steps of the GPU day, in the order in which an hour on a rented machine is best spent."""

from __future__ import annotations

import sys
from dataclasses import asdict

from pipelines.deploy.ports import Ports
from tests.gpu.step import Step

_MINUTE_S = 60.0
_RUNTIME = ("--runtime", "tensorrt_llm")


def day_steps(recipe: str, ports: Ports) -> tuple[Step, ...]:
    """Everything but stopping the server.

    The server comes early, and what needs no server comes last: if the hour ends before the list does, the
    rest can be had without a GPU, or in a second run, which finds the engines built.
    """
    of_recipe = ("--recipe", recipe)
    served = ("--url", f"grpc://127.0.0.1:{ports.grpc}", *of_recipe)
    listening = tuple(f"--{name}-port={port}" for name, port in asdict(ports).items())
    return (
        Step("machine", "GPUs, driver, containers", _probe("machine", *of_recipe), 2 * _MINUTE_S),
        Step(
            "quantize",
            "ModelOpt makes the checkpoints",
            _module("build.quantize", *of_recipe, *_RUNTIME),
            20 * _MINUTE_S,
        ),
        Step(
            "preflight",
            "rules and memory plan",
            _module("build.preflight", *of_recipe, *_RUNTIME),
            5 * _MINUTE_S,
            ("quantize",),
        ),
        Step(
            "engines",
            "trtllm-build takes our checkpoints and flags",
            _module("build.engines", *of_recipe, *_RUNTIME),
            40 * _MINUTE_S,  # the first run pulls an image of 20 GB
            ("machine", "quantize"),
        ),
        Step(
            "built",
            "W7: version and settings of the engines",
            _probe("built", *of_recipe),
            2 * _MINUTE_S,
            ("engines",),
        ),
        Step(
            "repository",
            "the model repository is rendered",
            _module("build.repository", *of_recipe, *_RUNTIME),
            5 * _MINUTE_S,
            ("engines",),
        ),
        Step(
            "serve",
            "NVIDIA's Triton loads both engines behind our models",
            _module("pipelines.deploy", "serve", *of_recipe, *_RUNTIME, *listening),
            35 * _MINUTE_S,  # its own limit, which quotes Triton's log, is 30
            ("repository",),
        ),
        Step("memory", "W5: memory in use beside the plan", _probe("memory", *served), _MINUTE_S, ("serve",)),
        Step(
            "sampling",
            "W1: sampled speculation works, and a refusal does not stop greedy speculation",
            _probe("sampling", *served),
            5 * _MINUTE_S,
            ("serve",),
        ),
        Step(
            "log-probs",
            "W2: log probabilities are real, or refused",
            _probe("log-probs", *served),
            5 * _MINUTE_S,
            ("serve",),
        ),
        Step(
            "verify",
            "generate answers as generate_target does",
            _module("pipelines.validation", *of_recipe, "--quick", "--only", "equality", "--json"),
            20 * _MINUTE_S,
            ("serve",),
        ),
        Step(
            "bench",
            "speed of generate and generate_target",
            _module("pipelines.bench", *of_recipe, "--quick", "--json"),
            20 * _MINUTE_S,
            ("serve",),
        ),
        Step(
            "image-user",
            "W6: the container's Python imports TensorRT-LLM as our user",
            _probe("image-user", *of_recipe),
            10 * _MINUTE_S,
            ("machine",),
        ),
        Step(
            "llm-api",
            "W4: the spelling of decoding_type that this version takes",
            _probe("llm-api", *of_recipe),
            10 * _MINUTE_S,
            ("machine",),
        ),
        Step(
            "tokenizers",
            "W3: published draft and target have equal tokenizers",
            _probe("tokenizers", *of_recipe),
            10 * _MINUTE_S,
        ),
    )


def stop_step(recipe: str) -> Step:
    """Stop the server, whatever came before."""
    return Step(
        "stop",
        "the server ends in time",
        _module("pipelines.deploy", "stop", "--recipe", recipe),
        5 * _MINUTE_S,
    )


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command behind a target of ``make``."""
    return (sys.executable, "-m", name, *arguments)


def _probe(name: str, *arguments: str) -> tuple[str, ...]:
    return _module("tests.gpu.probe", name, *arguments)
