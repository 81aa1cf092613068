"""The proof against scripted servers: what it compares, counts, and refuses to call equal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Workers
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.prompts import HELD_OUT, Prompt, read_prompts
from pipelines.validation import __main__ as command
from pipelines.validation.comparison import first_divergence
from pipelines.validation.margin import Explanation, explain
from pipelines.validation.proof import Plan, Proof, passes_of, prove
from pipelines.validation.report import as_document, describe

PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(4))
PLAN = Plan(PROMPTS, (0, 2), (1, 4), 5, (0.0, 0.8))

Change = Callable[[CompletionRequest, str, Generation], Generation]


def answer(ids: tuple[int, ...], finish: str = "length", drafted: int = 0, accepted: int = 0) -> Generation:
    text = "".join(map(str, ids))
    return Generation(text, ids, (), finish, len(ids), drafted, accepted, (), None, 1.0)


def honest(request: CompletionRequest, model: str) -> Generation:
    """A server whose answers depend on prompt, temperature and seed, and on nothing else."""
    start = sum(request.prompt.encode()) + round(request.temperature * 100) + 7 * (request.seed or 0)
    ids = tuple((start + position) % 50 for position in range(request.max_tokens))
    drafted = 2 * (request.num_draft_tokens or 0) if model == "generate" else 0
    return answer(ids, drafted=drafted, accepted=drafted // 2)


def run(change: Change = lambda request, model, given: given, plan: Plan = PLAN) -> Proof:
    def ask(request: CompletionRequest, model: str) -> Generation:
        return change(request, model, honest(request, model))

    return prove(plan, Workers([ask] * max(plan.concurrency)))


def test_equal_answers_pass_and_everything_compared_is_counted() -> None:
    proof = run()
    assert proof.verdict == "pass"
    # Per temperature: the target alone at 4 at once, and 2 draft lengths at 2 loads.
    assert len(proof.passes) == 2 * (1 + 2 * 2)
    assert proof.num_answers == len(proof.passes) * len(PROMPTS)
    assert proof.num_tokens == proof.num_answers * 5


def test_the_reference_is_asked_once_per_prompt_and_temperature() -> None:
    calls: list[tuple[str, float]] = []
    lock = threading.Lock()

    def count(request: CompletionRequest, model: str, given: Generation) -> Generation:
        with lock:
            calls.append((model, request.temperature))
        return given

    run(count)
    assert calls.count(("generate_target", 0.0)) == 2 * len(PROMPTS)  # once per load
    assert [str(asked) for asked in passes_of(PLAN)][:3] == [
        "generate_target greedy x1",
        "generate_target greedy x4",
        "generate num_draft_tokens=0 greedy x1",
    ]


def test_seeds_are_sent_only_where_sampling_happens_and_differ_between_prompts() -> None:
    seeds: dict[float, set[int | None]] = {0.0: set(), 0.8: set()}

    def note(request: CompletionRequest, model: str, given: Generation) -> Generation:
        seeds[request.temperature].add(request.seed)
        return given

    run(note)
    assert seeds == {0.0: {None}, 0.8: {0, 1, 2, 3}}


def test_one_wrong_token_at_one_load_fails_and_is_named() -> None:
    def slip(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if model == "generate" and request.num_draft_tokens == 2 and request.prompt == "text 2":
            return replace(given, output_ids=(*given.output_ids[:3], 99, given.output_ids[4]))
        return given

    proof = run(slip)
    assert proof.verdict == "fail"
    assert len(proof.findings) == 4
    finding = proof.findings[0]
    assert finding.divergence is not None
    assert (finding.prompt.prompt_id, finding.divergence.position) == ("p2", 3)
    assert finding.divergence.actual_id == 99
    text = describe(finding, Explanation("a", "b", 0.25))
    assert "prompt p2, generate num_draft_tokens=2 greedy x1" in text
    assert "position 3" in text
    assert "'99'" in text
    assert "logit margin 0.25" in text
    assert "logit margin not available: no engine" in describe(
        finding, Explanation("", "", None, "no engine")
    )


def test_a_target_that_depends_on_its_batch_mates_fails() -> None:
    running = threading.Semaphore(1)

    def drift(request: CompletionRequest, model: str, given: Generation) -> Generation:
        alone = running.acquire(blocking=False)
        threading.Event().wait(0.02)
        if alone:
            running.release()
            return given
        return replace(given, finish_reason="stop")

    proof = run(drift, replace(PLAN, temperatures=(0.0,)))
    assert proof.findings[0].asked.model == "generate_target"


@pytest.mark.parametrize(
    ("other", "kind", "position"),
    [
        (answer((1, 2, 3, 4)), "", -1),
        (answer((1, 9, 3, 4)), "token", 1),
        (answer((1, 2, 3)), "length", 3),
        (answer((1, 2, 3, 4, 5)), "length", 4),
        (answer(()), "length", 0),
        (answer((1, 9)), "token", 1),
        (answer((1, 2, 3, 4), "stop"), "finish_reason", 4),
        (replace(answer((1, 2, 3, 4)), text="?"), "text", 4),
    ],
)
def test_the_first_difference_is_found(other: Generation, kind: str, position: int) -> None:
    divergence = first_divergence(answer((1, 2, 3, 4)), other)
    if divergence is None:
        assert kind == ""
    else:
        assert (divergence.kind, divergence.position) == (kind, position)


def test_the_ids_at_a_difference_are_kept_and_an_end_has_none() -> None:
    shorter = first_divergence(answer((1, 2, 3)), answer((1, 2), "stop"))
    assert shorter is not None
    assert (shorter.expected_id, shorter.actual_id) == (3, None)


def test_nothing_compared_is_a_failure() -> None:
    proof = run(lambda request, model, given: replace(given, output_ids=(), text=""))
    assert proof.verdict == "fail"
    assert "no token was compared at all" in proof.failures()


def test_a_server_that_never_drafts_fails_the_proof() -> None:
    proof = run(lambda request, model, given: replace(given, total_draft_tokens=0))
    assert proof.verdict == "fail"
    assert any("nothing was drafted" in reason for reason in proof.failures())


def test_a_server_that_never_accepts_fails_the_proof() -> None:
    proof = run(lambda request, model, given: replace(given, total_accepted_draft_tokens=0))
    assert proof.failures() == ["no draft token was ever accepted, so acceptance was not tested"]


def test_drafting_while_switched_off_fails_the_proof() -> None:
    proof = run(lambda request, model, given: replace(given, total_draft_tokens=1))
    assert any("speculation was off, but" in reason for reason in proof.failures())


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ServerBusyError("full"), "inconclusive"), (EngineFailedError("step failed"), "fail")],
)
def test_no_answer_is_inconclusive_but_a_failure_of_speculation_alone_is_a_failure(
    error: DraftproofError, verdict: str
) -> None:
    def fail(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if model == "generate" and request.prompt == "text 1":
            raise error
        return given

    proof = run(fail)
    assert proof.verdict == verdict
    assert proof.num_missing == (8 if verdict == "inconclusive" else 0)


def test_a_prompt_that_the_target_cannot_answer_is_missing_not_equal() -> None:
    def fail(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if request.prompt == "text 1":
            raise InvalidRequestError("too long")
        return given

    proof = run(fail)
    assert proof.verdict == "inconclusive"
    assert proof.num_missing == len(proof.passes)


def test_a_server_that_goes_away_leaves_the_proof_inconclusive_unless_nothing_was_compared() -> None:
    def gone(request: CompletionRequest, model: str, given: Generation) -> Generation:
        raise ServerUnavailableError("gone")

    assert run(gone).verdict == "fail"


def test_the_margin_says_why_it_is_not_there(tmp_path: Path) -> None:
    finding = run(lambda request, model, given: replace(given, text=model)).findings[0]
    assert explain(finding, None).why_no_margin == "the tokens are equal"
    changed = run(lambda r, m, given: replace(given, output_ids=(1,)) if m == "generate" else given)
    assert "not on this machine" in explain(changed.findings[0], None).why_no_margin
    assert "could not be run" in explain(changed.findings[0], tmp_path).why_no_margin


def test_the_document_holds_what_machines_need() -> None:
    document = json.loads(json.dumps(as_document(run(), None)))
    assert document["verdict"] == "pass"
    assert document["tokens_compared"] == 200
    assert document["passes"][1]["num_draft_tokens"] == 0


class FakeClient:
    """Stands in for a connected client on the command line."""

    def server_version(self) -> str:
        return "2.51.0"

    def model_parameters(self, model: str) -> dict[str, str]:
        return {}

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes the command line ask a function instead of a server."""

    def install(ask: Any) -> None:
        @contextmanager
        def server(url: str, recipe: str) -> Iterator[str]:
            yield "grpc://127.0.0.1:1"

        monkeypatch.setattr(command, "running_server", server)
        monkeypatch.setattr(command.Client, "connect", lambda url: FakeClient())
        workers = lambda url, count, *, streaming: Workers([ask] * count)  # noqa: E731
        monkeypatch.setattr(command.Workers, "connect", workers)

    return install


def test_exit_codes_tell_pass_fail_and_inconclusive(
    scripted: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prompts", "2", "--draft-lengths", "1", "--concurrency", "1,2", "--max-tokens", "4"]

    def wrong(request: CompletionRequest, model: str) -> Generation:
        given = honest(request, model)
        return replace(given, output_ids=(0, 0, 0, 0)) if model == "generate" else given

    def busy(request: CompletionRequest, model: str) -> Generation:
        if model == "generate" and request.temperature:
            raise ServerBusyError("full")
        return honest(request, model)

    for ask, code, verdict in ((honest, 0, "pass"), (wrong, 1, "fail"), (busy, 3, "inconclusive")):
        scripted(ask)
        assert command.main(arguments) == code
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert document["verdict"] == verdict
        assert document["conditions"]["triton_version"] == "2.51.0"


def test_no_server_is_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--url", "grpc://127.0.0.1:9"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--draft-lengths", "1,x"],
        ["--draft-lengths", "-1"],
        ["--concurrency", "0"],
        ["--prompts", "0"],
        ["--prompts", "7"],
        ["--prompts", "100000"],
        ["--prompt-file", "absent.jsonl"],
        ["--temperatures", "warm"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_prompt_files_are_checked(tmp_path: Path) -> None:
    prompts = read_prompts(HELD_OUT, 16)
    assert len({prompt.prompt_id for prompt in prompts}) == 16
    path = tmp_path / "prompts.jsonl"
    for text, message in (
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "an id twice"),
        ('{"id": "a", "text": "x"}\n', "too few"),
        ('{"id": "a"}\n\n', "cannot be read"),
        ("[1]\n", "cannot be read"),
        ("nonsense\n", "cannot be read"),
        ("", "too few"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidRequestError, match=message):
            read_prompts(path, 2)
