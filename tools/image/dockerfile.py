"""Reads a stage of the Dockerfile, so that both ways to an image follow the same lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipelines.errors import DraftproofError


@dataclass(frozen=True)
class Copy:
    """``COPY``: a file or folder of the checkout and its absolute path in the image."""

    source: str
    target: str


@dataclass(frozen=True)
class Run:
    """``RUN``: a command of the shell, as root."""

    command: str


@dataclass(frozen=True)
class Stage:
    """Steps and configuration that a stage adds to its base image.

    Attributes:
        steps: Files and commands, in order.
        environment: Variables of the image.
        labels: Labels of the image.
        user: User and group, as ``uid:gid``.
        working_dir: Where commands start.
    """

    steps: tuple[Copy | Run, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = "/"


def read_stage(text: str, name: str) -> Stage:
    """Return a stage with all that it inherits from earlier ones.

    Args:
        text: The Dockerfile.
        name: Name of the stage.

    Raises:
        DraftproofError: There is no such stage, or it has an instruction that is not understood here.
    """
    stages: dict[str, Stage] = {}
    current, stage = "", Stage()
    for instruction, rest in _instructions(text):
        if instruction == "FROM":
            base, _, current = rest.partition(" AS ")
            stage = stages.get(base, Stage())
        elif instruction != "ARG":
            stage = _followed(stage, instruction, rest)
        stages[current] = stage
    if name not in stages:
        raise _refused(f"it has no stage {name}", ", ".join(sorted(stages)))
    return stages[name]


def _followed(stage: Stage, instruction: str, rest: str) -> Stage:
    if instruction == "COPY" and len(rest.split()) == 2 and not rest.startswith("--"):
        return replace(stage, steps=(*stage.steps, Copy(*rest.split())))
    if instruction == "RUN" and stage.user in ("", "root"):
        return replace(stage, steps=(*stage.steps, Run(rest)))
    if instruction == "ENV":
        return replace(stage, environment={**stage.environment, **_pairs(rest)})
    if instruction == "LABEL":
        return replace(stage, labels={**stage.labels, **_pairs(rest)})
    if instruction == "USER":
        return replace(stage, user=rest)
    if instruction == "WORKDIR":
        return replace(stage, working_dir=rest)
    raise _refused("it has an instruction that is not understood", f"{instruction} {rest}")


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\s*\\\n\s*", " ", lines)
    words = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(instruction, rest.strip()) for instruction, _, rest in words]


def _pairs(rest: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(rest))


def _refused(what: str, values: str) -> DraftproofError:
    return DraftproofError(
        f"the Dockerfile cannot be followed: {what}",
        values=values,
        limit="FROM, ARG, ENV, LABEL, USER, WORKDIR, COPY of one path, RUN as root",
        remedy="write it with these, or extend tools/image/dockerfile.py",
    )
