"""Everything that a comparison needs of the control, so that the control itself need not be there."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pipelines.atomic_file import whole_file
from pipelines.errors import DraftproofError, InvalidRequestError, VerificationError, from_wire
from pipelines.validation.differences import Difference
from pipelines.validation.openai.sampled import Samples
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question

Recorded = Answer | str
"""An answer, or the error in place of one, as ``DraftproofError.to_wire`` writes it."""


@dataclass(frozen=True)
class Settings:
    """Size of a comparison.

    Attributes:
        num_prompts: Most prompts that are asked.
        max_tokens: Most tokens of an answer.
        num_at_once: Number of concurrent requests of the load.
        num_sampled: Number of sampled answers to each of the first few prompts; 0 for none.
    """

    num_prompts: int = 320
    max_tokens: int = 128
    num_at_once: int = 8
    num_sampled: int = 0


@dataclass(frozen=True)
class Answers:
    """A server's answers to some questions.

    Attributes:
        questions: The questions; the ids of their prompts are unique.
        alone: Its answers one at a time, with log probabilities: the reference.
        loaded: Its answers under load, in streams if it ends them.
        scored: Where it would replace a token of its own answer in one pass over that; None elsewhere.
    """

    questions: tuple[Question, ...]
    alone: tuple[Recorded, ...]
    loaded: tuple[Recorded, ...]
    scored: tuple[Difference | None, ...]

    def __add__(self, more: Answers) -> Answers:
        """Join the answers to two sets of questions."""
        return Answers(
            self.questions + more.questions,
            self.alone + more.alone,
            self.loaded + more.loaded,
            self.scored + more.scored,
        )


@dataclass(frozen=True)
class Baseline:
    """A control's answers, and what is known of the control.

    Attributes:
        settings: Size of the comparison.
        control: Engine, model and fingerprint of the control.
        abilities: What it can tell about its answers.
        answers: Its answers, to a few questions of every kind first.
        samples: Sampled answers; None if there are none.
        not_checked: What could not be asked, with the reasons.
        failures: Kinds of failed requests -> how many there were.
        num_retries: Number of requests that were sent again because the control was busy.
        slowest_s: Longest time that an answer took, in seconds.
        conditions: When, where and with which command they were recorded, and the prompts.
    """

    settings: Settings
    control: str
    abilities: Abilities
    answers: Answers
    samples: Samples | None
    not_checked: tuple[str, ...]
    failures: Mapping[str, int]
    num_retries: int
    slowest_s: float
    conditions: Mapping[str, Any]


def answer_or_error(recorded: Recorded) -> Answer | DraftproofError:
    """Return a recorded answer, or the error in place of one."""
    if isinstance(recorded, Answer):
        return recorded
    return from_wire(recorded) or VerificationError(f"the baseline has no answer: {recorded}")


FORMAT = "draftproof-baseline-3"
"""Changes with the kinds of questions too, whose answers are checked against this version's forms."""

MOST_BYTES = 256 << 20
"""Most bytes of a baseline, unpacked; the whole of a default one has about ten million."""

_ADAPTER = TypeAdapter(
    with_config(ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants"))(Baseline)
)


def write_baseline(path: Path, baseline: Baseline) -> str:
    """Write a baseline; returns its digest.

    Raises:
        InvalidRequestError: The file cannot be written.
    """
    content = _ADAPTER.dump_json(baseline)
    digest = hashlib.sha256(content).hexdigest()
    header = json.dumps({"format": FORMAT, "sha256": digest}).encode()
    try:
        with whole_file(path) as made:
            made.write_bytes(gzip.compress(header + b"\n" + content, mtime=0))
            made.chmod(0o644)
    except OSError as error:
        raise InvalidRequestError(
            f"the baseline cannot be written: {path}: {error.strerror}", "name another file with --record"
        ) from None
    return digest


def read_baseline(path: Path) -> tuple[Baseline, str]:
    """Read a baseline and its digest.

    Raises:
        InvalidRequestError: The file cannot be read, is damaged, or has another format.
    """
    try:
        header, _, content = _unpacked(path).partition(b"\n")
        named = json.loads(header)
        found, digest = named["format"], named["sha256"]
    except OSError as error:
        reason = error.strerror or "damaged, or no file of gzip"
        raise _refused(path, reason) from None
    except (EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}") from None
    if found != FORMAT:
        raise _refused(path, f"its format is {found!r:.60}, not {FORMAT!r}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise _refused(path, "its content does not have its SHA-256")
    try:
        return _ADAPTER.validate_json(content), digest
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _refused(path, f"{place}: {first['msg']}") from None


def _unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return content


def _refused(path: Path, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the baseline {path} cannot be used: {why}",
        "record it again: draftproof verify --control URL --record FILE",
    )
