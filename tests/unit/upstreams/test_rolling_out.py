"""Tests of rollouts between servers of other engines, through a running service."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.canary.__main__ import main as canary
from pipelines.canary.report.record import Judgement, RolloutRecord, judgement
from pipelines.canary.report.rollout_report import report_of
from pipelines.canary.run_files import state_file
from pipelines.upstreams.request import RESPONSES
from tests.support.stand_in_openai import Faults, stand_in_openai
from tests.unit.upstreams.running import Running, ended, figures, has_begun, running, write_plan

COMPLETIONS = "/v1/completions"
_PAUSE_S = 0.02  # leaves the processor to other tests


@contextmanager
def clients(service: Running, **fields: Any) -> Iterator[list[int]]:
    """Ask without a pause during the block, four clients at a time; yields the statuses."""
    statuses: list[int] = []
    ending = threading.Event()

    def ask(first: int) -> None:
        for number in itertools.count(first, 4):
            if ending.is_set():
                return
            with suppress(httpx.HTTPError):
                answer = service.ask(f"prompt {number}", stream=number % 8 != 0, **fields)
                statuses.append(answer.status_code)
            time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=ask, args=(each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def rolled_out(folder: Path, faults: Faults, path: str = COMPLETIONS) -> tuple[RolloutRecord, Judgement]:
    """Roll a candidate with faults out under load."""
    with (
        stand_in_openai() as old,
        stand_in_openai() as new,
        running(folder, {"url": old.url}, {"url": new.url}) as service,
    ):
        kept = {"store": False} if path == RESPONSES else {}  # what a server keeps is not repeated
        with clients(service, path=path, **kept) as statuses:
            has_begun(service)
            new.faults = faults
            record = ended(service)
        assert set(statuses) <= {200}
        seen = figures(service)
        assert seen[f'draftproof_rollout_phase{{phase="{record.phase}"}}'] == 1
        if not faults.hangs:
            assert seen['replays_total{arm="candidate",outcome="equal"}'] > 0
        assert ('replays_total{arm="candidate",outcome="different"}' in seen) == bool(faults.changes)
        judged = judgement(record)
        code, said = service.stop()
        assert code == {"pass": 0, "fail": 1, "inconclusive": 3}[judged.verdict], said
        return record, judged


def test_a_good_server_is_promoted_and_stays_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path)
    record, judged = rolled_out(tmp_path, Faults())
    assert (record.phase, judged.verdict) == ("promoted", "pass")
    assert "not judged: acceptance_rate" in judged.reason
    losses = report_of(record, {})["evidence"]["losses"]
    assert next(each["trials"] for each in losses if each["loss"] == "answers") >= 60
    state = str(state_file(tmp_path / "service"))
    assert canary(["verdict", "--state", state]) == 0
    assert canary(["report", "--state", state, "--results", str(tmp_path / "results")]) == 0
    assert len(list((tmp_path / "results").glob("*.json"))) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == "pass"
    with (
        stand_in_openai() as old,
        stand_in_openai() as new,
        running(tmp_path, {"url": old.url}, {"url": new.url}) as service,
    ):
        assert service.ask("hello").status_code == 200
        assert (len(old.requests), len(new.requests)) == (0, 1)
        assert service.stop()[0] == 0


@pytest.mark.long  # by day tests/integration/front_door/test_upstreams.py rolls a real server back
@pytest.mark.parametrize(
    ("faults", "metric", "fault", "path"),
    [
        (Faults(changes=0.2), "answers", "", COMPLETIONS),
        (Faults(ends=0.6), "errors", "a stream that ended early", RESPONSES),
        (Faults(cuts=0.6), "errors", "a connection that broke", COMPLETIONS),
        (Faults(fails=0.3), "errors", "HTTP 500", COMPLETIONS),
        (Faults(limits=0.3), "errors", "HTTP 429", COMPLETIONS),
        (Faults(garbles=0.3), "errors", "garbage", COMPLETIONS),
        (Faults(renames=0.6), "errors", "another model than before", COMPLETIONS),
        (Faults(hangs=0.3), "errors", "no answer in time|no token in time", COMPLETIONS),
    ],
)
def test_a_bad_server_is_rolled_back_for_what_it_does(
    faults: Faults, metric: str, fault: str, path: str, tmp_path: Path
) -> None:
    write_plan(tmp_path)
    record, judged = rolled_out(tmp_path, faults, path)
    assert (record.phase, judged.verdict) == ("rolled_back", "fail")
    assert metric in judged.reason
    faults = report_of(record, {})["faults"]
    if fault:
        seen = {each["fault"] for each in faults if each["arm"] == "candidate"}
        assert seen and seen <= set(fault.split("|"))
    else:
        assert faults == []
        assert record.divergences[0]["differs_in"] == "text"


def test_a_server_without_responses_is_refused_beside_one_that_has_them(tmp_path: Path) -> None:
    write_plan(tmp_path)
    with (
        stand_in_openai() as old,
        stand_in_openai(has_responses=False) as new,
        running(tmp_path, {"url": old.url}, {"url": new.url}) as service,
    ):
        record = ended(service)
        assert "new has no /v1/responses" in judgement(record).reason
        assert service.stop()[0] == 1
