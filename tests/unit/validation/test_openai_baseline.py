"""Tests of the file of a baseline: what is written is read, and what was changed is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.validation.__main__ import main
from pipelines.validation.openai.baseline import FORMAT, answer_or_error, read_baseline, write_baseline
from tests.support.recorded_baseline import BASELINE

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json.gz"
    write_baseline(path, BASELINE)
    return path


def test_what_is_written_is_read(file: Path) -> None:
    found, digest = read_baseline(file)
    assert found == BASELINE
    assert digest == write_baseline(file, BASELINE), "two recordings of the same are one file"
    assert write_baseline(file, replace(BASELINE, num_retries=5)) != digest
    error = answer_or_error(found.answers.alone[1])
    assert isinstance(error, ServerBusyError) and error.message == "busy: 429"


def signed(content: bytes, name: str = FORMAT) -> bytes:
    header = json.dumps({"format": name, "sha256": hashlib.sha256(content).hexdigest()}).encode()
    return gzip.compress(header + b"\n" + content)


def damaged(whole: bytes, kind: str) -> bytes:
    header, _, content = gzip.decompress(whole).partition(b"\n")
    return {
        "cut": whole[:-20],
        "flipped": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "another file": b"PK",
        "edited": gzip.compress(header + b"\n" + content.replace(b'"ab"', b'"ac"')),
        "no header": gzip.compress(content),
        "deep header": gzip.compress(b"[" * 100_000 + b"\n" + content),
        "deep content": signed(b"[" * 100_000),
        "older format": signed(content, "draftproof-baseline-0"),
        "unknown key": signed(content.replace(b'"control"', b'"kontrol"', 1)),
    }[kind]


DAMAGE = (
    *("cut", "flipped", "another file", "edited", "no header", "deep header", "deep content"),
    *("older format", "unknown key"),
)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused(kind: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(damaged(file.read_bytes(), kind))
    with pytest.raises(InvalidRequestError, match="record it again"):
        read_baseline(file)
    with pytest.raises(SystemExit) as left:
        main(["--against", NOWHERE, "--baseline", str(file)])
    assert left.value.code == 2 and "cannot be used: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--max-tokens", "4"], "--max-tokens; only with --control"),
        (["--prompts", "mine.txt"], "--prompts; only with --control"),
        (["--control-fields", "{}"], "only with --control"),
        (["--control", NOWHERE], "do not belong together"),
        (["--record", "x"], "do not belong together"),
    ],
)
def test_other_settings_are_refused(
    more: list[str], reason: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--against", NOWHERE, "--baseline", str(file), *more])
    assert left.value.code == 2 and reason in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        write_baseline(tmp_path / "file" / "baseline.json.gz", BASELINE)
