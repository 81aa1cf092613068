"""Tests of ``draftproof verify --control`` and ``--baseline``: a real front door, and planted faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.__main__ import main
from pipelines.validation.differences import Comparison
from pipelines.validation.openai.baseline import Answers, read_baseline, write_baseline
from tests.integration.front_door.conftest import url_of
from tests.support import fault_proxy as faults
from tests.support.fault_proxy import Fault, Sometimes, fault_proxy

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

NUM_PROMPTS, MAX_TOKENS = 12, 10
SIZE = "--num-prompts", str(NUM_PROMPTS), "--max-tokens", str(MAX_TOKENS), "--num-at-once", "3"
BEYOND_ROUNDING = "differ by more than any rounding"
FEATURES = ("stop words", "structured output", "required tool calls", "offered tools", "long prompts")
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
def plain(baseline: Path) -> Path:
    """Return the baseline without questions about features."""
    whole, _ = read_baseline(baseline)
    nothing = Answers((), (), (), Comparison("", (), frozenset()))
    file = baseline.with_name("plain.json.gz")
    write_baseline(file, replace(whole, featured=nothing))
    return file


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Return a function that gives exit code, report and everything that was written or printed."""

    def work(against: str, *arguments: object) -> Run:
        page = tmp_path / "verify.html"
        code = main(["--against", against, *map(str, arguments), "--html", str(page), "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out.splitlines()[-1]), printed.out + printed.err + page.read_text()

    return work


def judged(report: dict[str, Any], *, features: bool = False) -> list[dict[str, Any]]:
    """Return the sections with a verdict: of plain answers, or of those to questions about features."""
    sections = [section for section in report["sections"] if section["verdict"] != "info"]
    return [section for section in sections if ("features" in section["title"]) == features]


def about_features(report: dict[str, Any]) -> dict[str, Any]:
    return dict(
        next(each for each in report["sections"] if each["title"] == "Features of requests")["figures"]
    )


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
    assert len(judged(report)) == 3 and len(judged(report, features=True)) == 2
    for each in judged(report) + judged(report, features=True):
        assert each["figures"]["equal"] == each["figures"]["prompts"] >= NUM_PROMPTS - 2, each["summary"]
        assert each["figures"]["draft_tokens"] > 0
    asked = about_features(report)
    assert tuple(asked) == FEATURES
    assert all(asked[name]["ended"] > 0 for name in FEATURES[:3]), "nothing was checked against a schema"
    able = report["sections"][-1]["figures"]["candidate"]
    assert all(able[name] for name in ("token_ids", "prompt_ids", "echo", "seed", "streams", "counts_drafts"))
    assert able["log_probs"] == 20


def test_a_recorded_baseline_replaces_the_control(
    run: Callable[..., Run], door: Server, baseline: Path, fields: dict[str, Any]
) -> None:
    code, report, printed = run(url_of(door), "--fields", json.dumps(fields), "--baseline", baseline)
    assert (code, report["verdict"]) == (3, "inconclusive"), printed
    for each in judged(report) + judged(report, features=True):
        assert each["figures"]["equal"] == each["figures"]["prompts"], each["summary"]
    assert report["conditions"]["baseline"]["command"].startswith("draftproof verify --control")


WHOLE, STREAMED = range(2), range(2, 3)
"""The sections of plain answers in which a fault is found."""


@pytest.mark.parametrize(
    ("fault", "reason", "found"),
    [
        pytest.param(*each, id=getattr(each[0], "fault", each[0]).__name__, marks=marks)
        for each, *marks in (
            ((Sometimes(faults.change_a_token, 4), BEYOND_ROUNDING, WHOLE),),
            ((Sometimes(faults.drop_a_token, 4), BEYOND_ROUNDING, WHOLE), pytest.mark.long),
            ((faults.ignore_the_temperature, "non-ties in more than", WHOLE),),
            ((Sometimes(faults.lie_about_ids, 4), BEYOND_ROUNDING, WHOLE), pytest.mark.long),
            ((faults.change_the_model, BEYOND_ROUNDING, WHOLE), pytest.mark.long),
            ((Sometimes(faults.cut, 4), BEYOND_ROUNDING, WHOLE), pytest.mark.long),
            ((Sometimes(faults.garble, 4), BEYOND_ROUNDING, WHOLE), pytest.mark.long),
            ((faults.cut_streams, BEYOND_ROUNDING, STREAMED),),
        )
    ],
)
def test_a_planted_fault_is_found(
    run: Callable[..., Run],
    fault: Fault,
    reason: str,
    found: range,
    door: Server,
    plain: Path,
    fields: dict[str, Any],
) -> None:
    with fault_proxy(url_of(door), fault) as url:
        code, report, printed = run(url, "--fields", json.dumps(fields), "--baseline", plain)
    assert (code, report["verdict"]) == (1, "fail"), printed
    sections = judged(report)
    assert ["streamed" in each["title"] for each in sections] == [False, False, True]
    assert all(reason in sections[number]["summary"] for number in found), printed
    if found is STREAMED:
        assert all(each["figures"]["equal"] == NUM_PROMPTS for each in sections[:2]), printed


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (
            (
                *(faults.ignore_stop_words, faults.ignore_the_schema),
                *(faults.change_the_arguments, faults.forget_the_beginning),
            ),
            {"x3": {"stop words", "structured output", "required tool calls", "long prompts"}},
        ),
        pytest.param(
            (faults.ignore_the_tools, faults.cut_calls),
            {"x3": {"required tool calls", "offered tools"}, "x3, streamed": {"required tool calls"}},
            marks=pytest.mark.long,
        ),
    ],
    ids=["whole answers", "tools"],
)
def test_a_fault_of_a_feature_is_found_there_and_nowhere_else(
    run: Callable[..., Run],
    planted: tuple[Fault, ...],
    found: dict[str, set[str]],
    door: Server,
    baseline: Path,
    fields: dict[str, Any],
) -> None:
    with fault_proxy(url_of(door), *planted, in_chat=True) as url:
        code, report, printed = run(url, "--fields", json.dumps(fields), "--baseline", baseline)
    assert (code, report["verdict"]) == (1, "fail"), printed
    asked = about_features(report)
    for arm in ("x3", "x3, streamed"):
        different = {name: each["different"][f"candidate, features {arm}"] for name, each in asked.items()}
        expected = {name: asked[name]["questions"] * (name in found.get(arm, ())) for name in FEATURES}
        assert different == expected, printed
    assert all(each["figures"]["equal"] == NUM_PROMPTS for each in judged(report)), printed


def test_a_draft_token_that_stands_is_found_without_token_ids(
    run: Callable[..., Run], door: Server, plain: Path, fields: dict[str, Any]
) -> None:
    with fault_proxy(url_of(door), Sometimes(faults.let_the_draft_stand, 2), with_ids=False) as url:
        code, report, printed = run(url, "--fields", json.dumps(fields), "--baseline", plain)
    whole = [each for each in judged(report) if "streamed" not in each["title"]]
    assert (code, len(whole)) == (1, 2), printed
    assert all(BEYOND_ROUNDING in each["summary"] for each in whole), printed


@pytest.mark.long  # by day tests/unit/validation/test_distribution.py finds other distributions
def test_a_server_that_does_not_sample_is_found(run: Callable[..., Run], door: Server) -> None:
    sampled = "--sampled", "24", *SIZE, "--num-prompts", "2"
    with fault_proxy(url_of(door), faults.always_choose_the_best) as url:
        code, report, printed = run(url, "--control", url_of(door), *sampled)
    distribution = judged(report)[-1]
    assert (code, distribution["verdict"]) == (1, "fail"), printed
    assert "the distribution differs from the target's" in distribution["summary"], printed
    assert distribution["figures"]["answers_per_prompt_and_model"] == 24
    assert all(each["verdict"] == "inconclusive" for each in judged(report)[:-1]), printed


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (faults.change_a_token, "fail"),
        (faults.garble, "fail"),
        # Second best tokens of random weights: 1 % of prompts, the limit itself. Whether
        # a question about a feature fails is a matter of the prompts that have the fault.
        (faults.let_the_draft_stand, "inconclusive"),
    ],
)
def test_a_fault_in_one_prompt_of_a_hundred_is_found_by_the_default_number_of_prompts(
    run: Callable[..., Run], fault: Fault, verdict: str, door: Server
) -> None:
    rare = Sometimes(fault, 100)
    with fault_proxy(url_of(door), rare, with_ids=fault is not faults.let_the_draft_stand) as url:
        code, report, printed = run(url, "--control", url_of(door), *SIZE, "--num-prompts", "320")
    one_at_a_time, *_ = judged(report)
    figures = one_at_a_time["figures"]
    assert one_at_a_time["verdict"] == verdict, printed
    assert code in ((1,) if verdict == "fail" else (1, 3)), printed
    assert figures["non_ties"] > 0, printed
    assert 0 < figures["prompts"] - figures["equal"] <= 10, "the fault is not rare"


@pytest.mark.long
def test_the_default_number_of_prompts_passes_our_own_server(run: Callable[..., Run], door: Server) -> None:
    code, report, printed = run(url_of(door), "--control", url_of(door), *SIZE, "--num-prompts", "320")
    assert (code, report["verdict"]) == (0, "pass"), printed
