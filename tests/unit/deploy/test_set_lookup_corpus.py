"""Tests of the command that gives a server a corpus, and of the server's side that reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipelines.deploy import live_settings
from pipelines.deploy.live_settings import set_lookup_corpus
from pipelines.errors import InvalidRequestError
from pipelines.manifest import engine_digest, sha256_file
from pipelines.triton.engine.live_corpus import LiveCorpus
from tests.conftest import REPOSITORY_ROOT

TOKENIZER = REPOSITORY_ROOT / "engines" / "demo_pair" / "target" / "tokenizer.json"
VOCAB_SIZE = 2048
CODE = "def add(first, second):\n    return first + second\n"


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """Return a run directory of a pair whose engine consists of the demonstration's tokenizer."""
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    digest = sha256_file(TOKENIZER)
    manifest = {"files": {"tokenizer.json": {"sha256": digest}}}
    (engine / "manifest.json").write_text(json.dumps(manifest))
    directory = tmp_path / "run"
    parameters = {
        "target_engine_dir": engine,
        "target_engine_digest": engine_digest(manifest),
        "lookup_corpus_file": corpus_file(directory),
    }
    write_config(directory, parameters)
    return directory


def corpus_file(run_directory: Path) -> Path:
    return run_directory / "lookup_corpus-5.npy"


def write_config(run_directory: Path, parameters: Mapping[str, object]) -> None:
    model = run_directory / "model_repository" / "speculative"
    model.mkdir(parents=True, exist_ok=True)
    lines = [
        f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'
        for name, value in parameters.items()
    ]
    (model / "config.pbtxt").write_text("".join(lines))


def test_the_server_looks_up_what_was_set(run_directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "inner" / "a.py").write_text(CODE)
    (folder / ".git" / "hidden").write_text("hidden")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    lines = tmp_path / "answers.jsonl"
    lines.write_text(json.dumps({"text": CODE, "id": 3}) + "\n\n" + json.dumps({"text": "other"}) + "\n")
    said: list[str] = []
    set_lookup_corpus(run_directory, [folder, lines], said.append)
    assert said[0].endswith("text: picture.png") and said[1].startswith("2 files, ")
    corpus = LiveCorpus(corpus_file(run_directory), VOCAB_SIZE).read()
    assert corpus is not None
    of_first_text = corpus.token_ids[corpus.token_ids >= 0]
    place, length = corpus.find(of_first_text[:8].tolist())
    assert length == 8
    assert corpus.continuation(place, 3).tolist() == of_first_text[8:11].tolist()


def test_a_running_server_follows_the_file(run_directory: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(CODE)
    live = LiveCorpus(corpus_file(run_directory), VOCAB_SIZE)
    assert live.read() is None and live.num_tokens == 0
    set_lookup_corpus(run_directory, [text], lambda line: None)
    assert wait_until(lambda: live.read() is not None)
    first = live.read()
    assert first is not None and live.read() is first
    text.write_text(2 * CODE)
    set_lookup_corpus(run_directory, [text], lambda line: None)
    assert wait_until(lambda: live.read() is not first)
    assert live.num_tokens > first.num_tokens
    (run_directory / "lookup_corpus-of-an-earlier-tokenizer.npy").touch()
    set_lookup_corpus(run_directory, [], lambda line: None)
    assert not list(run_directory.glob("lookup_corpus-*"))
    assert wait_until(lambda: live.read() is None)


def wait_until(is_true: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 60
    while not is_true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def test_a_broken_file_is_not_used_and_said_once(
    run_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = corpus_file(run_directory)
    path.write_bytes(b"broken")
    live = LiveCorpus(path, VOCAB_SIZE)
    assert live.read() is None and live.read() is None
    assert caplog.text.count("the corpus cannot be read") == 1


def test_a_long_text_is_tokenized_in_pieces(run_directory: Path, tmp_path: Path) -> None:
    """Its tokens are those of the whole text, because pieces end with lines."""
    (tmp_path / "text.txt").write_text(CODE * 40)
    set_lookup_corpus(run_directory, [tmp_path / "text.txt"], lambda line: None)
    whole = LiveCorpus(corpus_file(run_directory), VOCAB_SIZE).read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_settings, "_PIECE", 100)
        set_lookup_corpus(run_directory, [tmp_path / "text.txt"], lambda line: None)
    pieces = LiveCorpus(corpus_file(run_directory), VOCAB_SIZE).read()
    assert whole is not None and pieces is not None
    assert whole.token_ids.tolist() == pieces.token_ids.tolist()


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("empty.txt", "", "0 tokens"),
        ("lines.jsonl", '{"prompt": "a"}\n', "line 1: KeyError('text')"),
        ("lines.jsonl", "no JSON\n", "line 1: JSONDecodeError"),
        ("nowhere", None, "No such file"),
    ],
)
def test_what_is_no_text_is_refused_and_nothing_is_written(
    run_directory: Path, tmp_path: Path, name: str, content: str | None, wrong: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequestError) as caught:
        set_lookup_corpus(run_directory, [tmp_path / name], lambda line: None)
    assert wrong in caught.value.values and caught.value.remedy
    assert not corpus_file(run_directory).exists()


def test_a_tensorrt_llm_server_looks_nothing_up(run_directory: Path) -> None:
    write_config(run_directory, {"engine_access": "tensorrt_llm"})
    with pytest.raises(InvalidRequestError, match="--runtime embedded"):
        set_lookup_corpus(run_directory, [TOKENIZER], lambda line: None)
