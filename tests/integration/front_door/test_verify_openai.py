"""Tests of ``draftproof verify --control`` and ``--baseline``: a real front door, and planted faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.__main__ import main
from pipelines.validation.openai.kinds import KINDS as ALL_KINDS
from tests.integration.front_door.conftest import url_of
from tests.support.fault_proxy import Memory, fault_proxy
from tests.support.planted_faults import BY_NAME

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

NUM_PROMPTS, MAX_TOKENS = 12, 10
SIZE = "--num-prompts", str(NUM_PROMPTS), "--max-tokens", str(MAX_TOKENS), "--num-at-once", "3"
KINDS = ("plain answers", *ALL_KINDS)
SYSTEM = ("answers to two system messages", "pairs of choices (n=2)", "log probabilities")
Run = tuple[int, dict[str, Any], str]


@pytest.fixture(scope="module")
def fields(door_pair: tuple[Path, Path]) -> dict[str, Any]:
    """Return fields without which the model, whose weights are random, would fill JSON with spaces."""
    vocabulary = Vocabulary.from_file(door_pair[1] / "tokenizer.json")
    spaces = [token_id for token_id, text in enumerate(vocabulary.bytes_of) if text.isspace()]
    return {"logit_bias": {str(token_id): -100 for token_id in spaces}}


@pytest.fixture(scope="module")
def size(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return options with short prompts, which leave room for tools."""
    prompts = tmp_path_factory.mktemp("prompts") / "short.txt"
    prompts.write_text("\n---\n".join(f"x{number} = [" for number in range(40)), encoding="utf-8")
    return [*SIZE, "--prompts", str(prompts)]


@pytest.fixture(scope="module")
def baseline(
    door: Server, fields: dict[str, Any], size: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Record the answers of the target alone."""
    file = tmp_path_factory.mktemp("baseline") / "baseline.json.gz"
    alone = json.dumps({**fields, "num_draft_tokens": 0})
    code = main(["--control", url_of(door), "--control-fields", alone, "--record", str(file), *size])
    assert code == 0
    return file


@pytest.fixture(scope="module")
def memory(door: Server) -> Memory:
    """Return the server's answers, each of which is computed once for all faults."""
    return Memory(url_of(door))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Return a function that gives exit code, report and everything that was written or printed."""

    def work(against: str, *arguments: object) -> Run:
        page = tmp_path / "verify.html"
        code = main(["--against", against, *map(str, arguments), "--html", str(page), "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out.splitlines()[-1]), printed.out + printed.err + page.read_text()

    return work


def audits(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of plain answers and of other kinds, alone and under load."""
    return dict(report["sections"][1]["figures"]["audits"])


def kinds(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["kind"]: row for row in report["sections"][1]["figures"]["kinds"]}


def test_our_own_server_equals_its_target_alone(
    run: Callable[..., Run], door: Server, fields: dict[str, Any], size: list[str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret-of-this-test", encoding="utf-8")
    alone = json.dumps({**fields, "num_draft_tokens": 0})
    control = "--control", f"{url_of(door)}/v1", "--control-fields", alone
    code, report, printed = run(
        url_of(door), *control, "--fields", json.dumps(fields), "--key-file", key, *size
    )
    assert "sk-secret" not in printed
    assert (code, report["verdict"]) == (3, "inconclusive"), report  # too few prompts for the limit
    assert len(report["sections"]) == 4 and len(audits(report)) == 4
    for name, figures in audits(report).items():
        assert figures["equal"] == figures["questions"] > 0 == figures["missing"], name
    not_looked_at = report["sections"][-1]["figures"]
    skipped = {note.partition(":")[0] for note in not_looked_at["not_checked"]}
    assert set(KINDS) == set(kinds(report)) | {"sampled answers"} | (skipped & set(KINDS))
    assert {"answers with a stop word", "JSON answers", "required tool calls", *SYSTEM} <= set(kinds(report))
    able = report["sections"][-1]["figures"]["candidate"]
    assert all(
        able[name]
        for name in ("token_ids", "prompt_ids", "echo", "seed", "streams", "stream_usage", "counts_drafts")
    )
    assert able["log_probs"] == 20


def test_a_recorded_baseline_replaces_the_control(
    run: Callable[..., Run], door: Server, baseline: Path, fields: dict[str, Any]
) -> None:
    code, report, printed = run(url_of(door), "--fields", json.dumps(fields), "--baseline", baseline)
    assert (code, report["verdict"]) == (3, "inconclusive"), printed
    assert all(each["equal"] == each["questions"] for each in audits(report).values()), printed
    assert report["conditions"]["baseline"]["command"].startswith("draftproof verify --control")


@pytest.mark.parametrize(
    ("name", "one_in", "found"),
    [
        ("nothing", 1, set()),
        ("busy now and then (HTTP 429, then an answer)", 4, set()),
        ("a token is replaced", 4, {"plain answers"}),
        ("completion_tokens too large by one", 1, {"plain answers", "JSON answers"}),
        ("one token more than max_tokens", 1, {"plain answers"}),
        ("another answer the second time", 1, {"plain answers"}),
        ("streams lack their last text", 1, {"plain answers"}),
        ("HTTP status 500", 2, {"plain answers"}),
        ("log probabilities are shifted by one token", 1, {"log probabilities"}),
        ("alternatives are copied in streams", 1, {"log probabilities"}),
        ("the second system message is dropped", 1, {"answers to two system messages"}),
        ("the second choice is empty", 1, {"pairs of choices (n=2)"}),
        ("stop words are ignored", 1, {"answers with a stop word"}),
        ("the schema is ignored", 1, {"JSON answers"}),
        ("arguments of a call are cut", 1, {"required tool calls"}),
        ("long prompts lose their beginning", 1, {"answers to long prompts"}),
    ],
)
def test_a_planted_fault_is_found_and_named(
    name: str,
    one_in: int,
    found: set[str],
    run: Callable[..., Run],
    memory: Memory,
    baseline: Path,
    fields: dict[str, Any],
) -> None:
    """`python -m tests.drills judge` plants all of them, beside a published model."""
    with fault_proxy(memory, BY_NAME[name], one_in=one_in) as planted:
        code, report, printed = run(planted.url, "--fields", json.dumps(fields), "--baseline", baseline)
    assert bool(planted.hits) == (name != "nothing"), "the fault was not planted"
    assert code == (1 if found else 3), printed
    differ = {
        kind
        for kind, row in kinds(report).items()
        if any(number for what, number in row.items() if what.startswith("differ"))
    }
    assert found <= differ and bool(found) == bool(differ), printed
    sentence = report["sections"][0]["summary"]
    assert not found or any(kind in sentence for kind in found), sentence
    if found:
        differences = report["sections"][0]["figures"]["differences"]
        assert all(each["curl"].startswith(f"curl -sN {planted.url}/v1/") for each in differences)
    if name.startswith("streams"):
        assert not any(row["differ one at a time"] for row in kinds(report).values()), printed


@pytest.mark.long  # by day tests/unit/validation/test_distribution.py finds other distributions
def test_a_server_that_does_not_sample_is_found(run: Callable[..., Run], door: Server) -> None:
    sampled = "--sampled", "24", *SIZE, "--num-prompts", "2"
    with fault_proxy(url_of(door), BY_NAME["temperature 1 does not sample"]) as planted:
        code, report, printed = run(planted.url, "--control", url_of(door), *sampled)
    distribution = report["sections"][-1]
    assert (code, distribution["verdict"]) == (1, "fail"), printed
    assert "the distribution differs from the target's" in distribution["summary"], printed
    assert distribution["figures"]["answers_per_prompt_and_model"] == 24


@pytest.mark.long
def test_the_default_number_of_prompts_passes_our_own_server(
    run: Callable[..., Run], door: Server, fields: dict[str, Any]
) -> None:
    both = "--fields", json.dumps(fields), "--control-fields", json.dumps(fields)
    code, report, printed = run(url_of(door), "--control", url_of(door), *both, *SIZE, "--num-prompts", "320")
    assert (code, report["verdict"]) == (0, "pass"), printed
