"""Tests of ``draftproof verify --control``: a real front door, also with a fault planted before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.validation.__main__ import main
from tests.integration.front_door.conftest import url_of
from tests.support import fault_proxy as faults
from tests.support.fault_proxy import Fault, Sometimes, fault_proxy

pytestmark = pytest.mark.triton

NUM_PROMPTS, MAX_TOKENS = 16, 10
ALONE = '{"num_draft_tokens": 0}'


def verify(
    candidate: str, control: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any], str]:
    """Return exit code, report and everything that was written or printed."""
    page = folder / "verify.html"
    code = main(
        [
            *("--against", candidate, "--control", control, "--control-fields", ALONE, "--html", str(page)),
            *("--num-prompts", str(NUM_PROMPTS), "--max-tokens", str(MAX_TOKENS), "--num-at-once", "3"),
            *more,
        ]
    )
    printed = capsys.readouterr()
    return code, json.loads(printed.out.splitlines()[-1]), printed.out + printed.err + page.read_text()


def judged(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [section for section in report["sections"] if section["verdict"] != "info"]


def test_our_own_server_equals_its_target_alone(
    door: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret-of-this-test", encoding="utf-8")
    urls = url_of(door), f"{url_of(door)}/v1"
    code, report, printed = verify(*urls, tmp_path, capsys, "--key-file", str(key))
    assert "sk-secret" not in printed
    assert (code, report["verdict"]) == (3, "inconclusive"), report  # 16 prompts are too few for the limit
    assert len(judged(report)) == 3
    for section in judged(report):
        assert section["figures"]["equal"] == NUM_PROMPTS, section["summary"]
        assert section["figures"]["draft_tokens"] > 0
    able = report["sections"][-1]["figures"]["candidate"]
    assert all(able[name] for name in ("token_ids", "prompt_ids", "echo", "seed", "streams", "counts_drafts"))
    assert able["log_probs"] == 20


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Sometimes(faults.change_a_token, 4), "differ by more than any rounding"),
        (Sometimes(faults.drop_a_token, 4), "differ by more than any rounding"),
        (faults.ignore_the_temperature, "non-ties in more than"),
        (Sometimes(faults.let_the_draft_stand, 2), "differ by more than any rounding"),
        (Sometimes(faults.lie_about_ids, 4), "differ by more than any rounding"),
        (faults.change_the_model, "differ by more than any rounding"),
        (Sometimes(faults.cut, 4), "differ by more than any rounding"),
        (Sometimes(faults.garble, 4), "differ by more than any rounding"),
    ],
    ids=lambda each: getattr(getattr(each, "fault", each), "__name__", None),
)
def test_a_planted_fault_is_found(
    fault: Fault,
    reason: str,
    door: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    with_ids = "let_the_draft_stand" not in request.node.callspec.id
    with fault_proxy(url_of(door), fault, with_ids=with_ids) as url:
        code, report, printed = verify(url, url_of(door), tmp_path, capsys)
    assert (code, report["verdict"]) == (1, "fail"), printed
    whole = [section for section in judged(report) if "streamed" not in section["title"]]
    assert len(whole) == 2 and all(reason in section["summary"] for section in whole), printed


def test_a_stream_without_its_last_chunk_is_found(
    door: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fault_proxy(url_of(door), faults.cut_streams) as url:
        code, report, printed = verify(url, url_of(door), tmp_path, capsys)
    *whole, streamed = judged(report)
    assert (code, streamed["title"]) == (1, "First-divergence audit: candidate x3, streamed"), printed
    assert "differ by more than any rounding" in streamed["summary"], printed
    assert all(section["figures"]["equal"] == NUM_PROMPTS for section in whole), printed


def test_a_server_that_does_not_sample_is_found(
    door: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fault_proxy(url_of(door), faults.always_choose_the_best) as url:
        sampled = "--sampled", "40", "--num-prompts", "2"
        code, report, printed = verify(url, url_of(door), tmp_path, capsys, *sampled)
    *greedy, distribution = judged(report)
    assert (code, distribution["verdict"]) == (1, "fail"), printed
    assert "the distribution differs from the target's" in distribution["summary"], printed
    assert distribution["figures"]["answers_per_prompt_and_model"] == 40
    assert all(section["verdict"] == "inconclusive" for section in greedy), printed


@pytest.mark.long
@pytest.mark.parametrize("fault", [faults.change_a_token, faults.let_the_draft_stand, faults.garble])
def test_a_fault_in_one_prompt_of_a_hundred_is_found_by_the_default_number_of_prompts(
    fault: Fault, door: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rare = Sometimes(fault, 100)
    with fault_proxy(url_of(door), rare, with_ids=fault is not faults.let_the_draft_stand) as url:
        code, report, printed = verify(url, url_of(door), tmp_path, capsys, "--num-prompts", "320")
    one_at_a_time, *_ = judged(report)
    figures = one_at_a_time["figures"]
    assert (code, one_at_a_time["verdict"]) == (1, "fail"), printed
    assert 0 < figures["prompts"] - figures["equal"] <= 10, "the fault is not rare"


@pytest.mark.long
def test_the_default_number_of_prompts_passes_our_own_server(
    door: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report, printed = verify(url_of(door), url_of(door), tmp_path, capsys, "--num-prompts", "320")
    assert (code, report["verdict"]) == (0, "pass"), printed
