"""Tests of the comparison with other engines on stand-ins: nothing is installed, nothing timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.environment import ensure_environment
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import OURS_ADAPTIVE, OURS_ALONE, PEERS, Arm, Peer, arms_of
from benchmarks.peers.runners import ServerRunner, TokenizedPrompt
from benchmarks.peers.running_peers import running_peers
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Workers
from pipelines.errors import PeerError, ServerBusyError
from tests.conftest import REPOSITORY_ROOT
from tests.support.demo_prompts import held_out_prompts
from tests.support.tiny_engines import write_tokenizer

PROMPTS = tuple(TokenizedPrompt(f"text {index}", (index, index)) for index in range(16))


def stand_in(mode: str, name: str = "other") -> Peer:
    return Peer(name, "A stand-in", "other", mode, ("openvino",), (2, 4), needs_torch=False)


def test_our_server_is_asked_for_its_target_alone_and_for_its_own_choice() -> None:
    asked = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        asked.append((model, request.num_draft_tokens, request.max_tokens))
        return Generation("", (7,), (), "length", 0, 0, 0, (), None, 0.25)

    for arm in (OURS_ALONE, OURS_ADAPTIVE):
        outcome = ServerRunner(Workers([ask]), arm.num_draft_tokens).run(PROMPTS[:2], 8, 1)
        assert (outcome.answers, outcome.seconds) == (((7,), (7,)), (0.25, 0.25))
    assert asked == [("generate_target", None, 8)] * 2 + [("generate", None, 8)] * 2

    def busy(request: CompletionRequest, model: str) -> Generation:
        raise ServerBusyError("full")

    with pytest.raises(ServerBusyError):
        ServerRunner(Workers([busy]), 0).run(PROMPTS[:1], 8, 1)


@pytest.fixture
def models(tmp_path: Path) -> PeerModels:
    write_tokenizer(tmp_path / "target" / "hugging_face" / "tokenizer.json")
    forms = {form: f"target/{form}" for form in ("hugging_face", "openvino")}
    content = {
        "end_ids": [999],
        "num_threads": 2,
        "compile_properties": {"NUM_STREAMS": "1"},
        "max_seq_len": 1024,
        "max_num_tokens": 512,
    }
    return PeerModels(tmp_path, {**content, "target": forms, "draft": {"openvino": "draft/openvino"}})


def test_prompts_are_sent_in_the_targets_own_tokens(models: PeerModels) -> None:
    prompts = models.tokenized(held_out_prompts(3))
    assert len(prompts) == 3
    assert all(len(prompt.ids) > 4 for prompt in prompts)


def test_long_prompts_are_held_out_code_of_the_length_asked_for(models: PeerModels) -> None:
    prompts = models.code(3, 200)
    assert [prompt.num_tokens for prompt in prompts.all] == [200] * 3
    tokenized = models.tokenized(prompts.sets["code"])
    assert len({prompt.ids for prompt in tokenized}) == 3
    # Where a text was cut, the tokenizer may split it otherwise.
    assert all(abs(len(prompt.ids) - 200) <= 2 for prompt in tokenized)


def test_long_prompts_stand_instead_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--context", "2048", "--prompt-sets", "code"])
    assert stopped.value.code == 2
    assert "instead of --prompts" in capsys.readouterr().err


def test_a_program_is_told_the_best_form_of_the_weights_that_there_is(models: PeerModels) -> None:
    vllm = next(peer for peer in PEERS if peer.name == "vllm")
    request = models.load_request(vllm, Arm("vllm", 0), 8)
    assert (request.target, request.draft) == (str(models.folder / "target" / "hugging_face"), None)
    request = models.load_request(stand_in(""), Arm("other", 4), 8)
    assert (request.draft, request.num_draft_tokens) == (str(models.folder / "draft" / "openvino"), 4)
    assert request.compile_properties == {"NUM_STREAMS": "1"}
    with_its_own = replace(stand_in(""), takes_our_properties=False)
    assert models.load_request(with_its_own, Arm("other", 0), 8).compile_properties is None
    with pytest.raises(PeerError, match="no weights in a format"):
        models.load_request(replace(vllm, forms=("compressed_tensors",)), Arm("vllm", 0), 8)


def interpreter_for(folder: Path, mode: str) -> Path:
    """Return a command that runs the stand-in in a mode, whatever module it is told to run."""
    script = folder / "bin" / mode
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.stand_in_peer {mode}\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return script


def test_what_cannot_be_installed_or_loaded_is_named_and_the_rest_is_measured(
    models: PeerModels, tmp_path: Path
) -> None:
    def install(peer: Peer) -> Path:
        if peer.name == "absent":
            raise PeerError("no wheel for this machine")
        return interpreter_for(tmp_path, peer.module)

    peers = [stand_in("good", "absent"), stand_in("no-load", "broken"), stand_in("good", "whole")]
    with running_peers(peers, models, 8, 60.0, lambda line: None, install) as running:
        assert list(running.runners) == [Arm("whole", 0), Arm("whole", 2), Arm("whole", 4)]
        outcome = running.runners[Arm("whole", 2)].run(PROMPTS[3:5], 4, 2)
        assert outcome.answers == ((3, 4, 5), (4, 5, 6))  # the end token is removed
    assert running.failures["absent"] == "no wheel for this machine"
    assert set(running.failures) == {"absent", "broken target alone", "broken K=2", "broken K=4"}
    assert "no room for the weights" in running.failures["broken K=2"]
    assert running.loaded["whole"].versions == {"stand-in": "1.0"}


def test_an_environment_is_made_once_and_anew_when_its_requirements_change(tmp_path: Path) -> None:
    (tmp_path / "peers-other.txt").write_text("a==1\n", encoding="utf-8")
    (tmp_path / "torch.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    commands: list[list[str]] = []

    def run(line: Sequence[str], log: Path) -> None:
        commands.append(list(line))
        (tmp_path / "environments" / "other").mkdir(exist_ok=True)

    make = partial(
        ensure_environment,
        "other",
        needs_torch=True,
        environments=tmp_path / "environments",
        requirements=tmp_path,
    )
    for _ in range(2):
        interpreter = make(run=run)
    assert interpreter == tmp_path / "environments" / "other" / "bin" / "python"
    assert len(commands) == 3  # the second time it existed
    assert commands[0][1:3] == ["-m", "venv"]
    assert "--require-hashes" in commands[1] and "--require-hashes" not in commands[2]
    assert commands[2][-1] == str(tmp_path / "torch.txt")
    (tmp_path / "torch.txt").write_text("torch==2.14.0\n", encoding="utf-8")
    make(run=run)
    assert len(commands) == 6


def test_an_environment_that_cannot_be_made_says_what_the_installer_said(tmp_path: Path) -> None:
    (tmp_path / "peers-other.txt").write_text("--no-such-option\n", encoding="utf-8")
    with pytest.raises(PeerError, match="no-such-option"):
        ensure_environment(
            "other", needs_torch=False, environments=tmp_path / "environments", requirements=tmp_path
        )
    assert not (tmp_path / "environments" / "other" / "installed.sha256").exists()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_its_program_and_its_requirements(peer: Peer) -> None:
    assert (REPOSITORY_ROOT / f"{peer.module.replace('.', '/')}.py").is_file()
    text = (REPOSITORY_ROOT / "requirements" / f"peers-{peer.environment}.txt").read_text(encoding="utf-8")
    assert "--hash=sha256:" in text
    assert not [line for line in text.splitlines() if line.startswith("torch")]
    assert arms_of(peer)[0] == Arm(peer.name, 0)


class FakeClient:
    """A replacement for a connected client on the command line."""

    def server_version(self) -> str:
        return "2.51.0"

    def model_parameters(self, model: str) -> dict[str, str]:
        return {}

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("peers", "is_right", "exit_code"),
    [(("good",), True, 0), (("good",), False, 1), (("good", "dies"), True, 3), (("different",), True, 0)],
)
def test_the_command_prints_one_table_and_writes_its_result(
    peers: tuple[str, ...],
    is_right: bool,
    exit_code: int,
    models: PeerModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(request: CompletionRequest, model: str) -> Generation:
        ids = (1, 2) if is_right or model == "generate_target" else (1, 3)
        return Generation("", ids, (), "length", 0, 0, 0, (), None, 0.25)

    @contextmanager
    def server(url: str, recipe: str) -> Iterator[str]:
        yield "grpc://127.0.0.1:1"

    workers = lambda url, count, *, streaming: Workers([ask] * count)  # noqa: E731
    monkeypatch.setattr(command, "running_server", server)
    monkeypatch.setattr(command.Client, "connect", lambda url: FakeClient())
    monkeypatch.setattr(command.Workers, "connect", workers)
    monkeypatch.setattr(command.PeerModels, "of", lambda recipe: models)
    monkeypatch.setattr(command, "PEERS", tuple(stand_in(mode, mode) for mode in peers))
    start = command.running_peers
    monkeypatch.setattr(
        command,
        "running_peers",
        lambda *given: start(*given, install=lambda peer: interpreter_for(tmp_path, peer.module)),
    )
    arguments = ["--concurrency", "1,2", "--prompt-sets", "code,mixed", "--repetitions", "1"]
    assert command.main([*arguments, "--results", str(tmp_path / "results")]) == exit_code
    output = capsys.readouterr().out
    printed = json.loads(output.splitlines()[-1])
    (path,) = (tmp_path / "results").iterdir()
    assert json.loads(path.read_text(encoding="utf-8")) == printed
    assert path.stem == printed["run_id"]
    broken = {f"dies {way}" for way in ("target alone", "K=2", "K=4")} if "dies" in peers else set()
    assert set(printed["not_measured"]) == broken
    described = printed["conditions"]["peers"][peers[0]]
    assert described["versions"] == {"stand-in": "1.0"}
    different = {arm["arm"]: arm["num_different"] for arm in printed["arms"] if arm["prompt_set"] == "code"}
    assert (different[f"{peers[0]} K=2"] > 0) == (peers[0] == "different")
    assert (different["draftproof adaptive"] > 0) != is_right
    assert "draftproof adaptive" in output and "all" in {arm["prompt_set"] for arm in printed["arms"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--peers", "tensorrt"],
        ["--prompt-sets", "code,code"],
        ["--prompt-sets", ""],
        ["--concurrency", "0"],
        ["--max-tokens", "1"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2


def test_models_that_are_not_there_are_an_error_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "nowhere.yaml"
    recipe.write_text("name: no-such-recipe\n", encoding="utf-8")
    assert command.main(["--recipe", str(recipe)]) == 1
    assert "python -m benchmarks.peer_models" in json.loads(capsys.readouterr().out)["error"]
