"""Keep a baseline in a file: two lines of JSON, compressed, of which the first names format and digest."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pipelines.atomic_file import whole_file
from pipelines.errors import InvalidRequestError
from pipelines.validation.openai.baseline.baseline import Baseline

FORMAT = "draftproof-baseline-2"
"""Changes with the questions about features too, whose answers are checked against this version's forms."""

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
            "the baseline cannot be written",
            values=f"{path}: {error.strerror}",
            limit="a file in a folder that this user may write to",
            remedy="name another file with --record",
        ) from None
    return digest


def read_baseline(path: Path) -> tuple[Baseline, str]:
    """Read a baseline and its digest.

    Raises:
        InvalidRequestError: The file cannot be read, is damaged, or has another format.
    """
    try:
        header, _, content = gzip.decompress(path.read_bytes()).partition(b"\n")
        named = json.loads(header)
        found, digest = named["format"], named["sha256"]
    except OSError as error:
        reason = error.strerror or "damaged, or no file of gzip"
        raise _refused(path, reason, "the file that --record wrote") from None
    except (EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}", "a file that is whole") from None
    if found != FORMAT:
        raise _refused(path, f"format {found!r:.60}", f"format {FORMAT!r}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise _refused(path, "its content does not have its SHA-256", "a file that nobody changed")
    try:
        return _ADAPTER.validate_json(content), digest
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _refused(path, f"{place}: {first['msg']}", f"what {FORMAT!r} has") from None


def _refused(path: Path, values: str, limit: str) -> InvalidRequestError:
    return InvalidRequestError(
        "a baseline cannot be used",
        values=f"{path}: {values}",
        limit=limit,
        remedy="record it again: draftproof verify --control URL --record FILE",
    )
