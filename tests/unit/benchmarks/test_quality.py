"""Tests of what benchmarks of quality count as right, and of the process that runs generated code."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.quality import scoring, tasks
from benchmarks.quality.predictions import Greedy, beside

FUNCTIONS = yaml.safe_load(Path(scoring.__file__).with_name("functions.yaml").read_text(encoding="utf-8"))
ADD = "assert add(1, 2) == 3"


def test_every_function_can_be_completed_and_none_is_complete() -> None:
    every = scoring.tasks()
    assert [each.kind for each in every] == ["functions"] * 40 + ["questions"] * 40
    for each in FUNCTIONS:  # all in one process, and one in its own
        exec(each["solution"] + each["checks"], {})
        with pytest.raises((AssertionError, TypeError)):
            exec(each["begin"] + each["checks"], {})
    assert every[0].is_right(f"Here it is:\n```python\n{FUNCTIONS[0]['solution']}```\nDone.")


@pytest.mark.parametrize(
    ("code", "is_right"),
    [
        ("def add(a, b): return a + b", True),
        ("def add(a, b): return a - b", False),
        ("def add(a, b) return", False),
        ("raise SystemExit", False),
        ("import os\ndef add(a, b): os._exit(0)", False),
        ("def add(a, b): return len(bytearray(1 << 30)) and a + b", False),
        ("def add(a, b):\n    open('big', 'wb').write(bytes(1 << 21))\n    return a + b", False),
        ("print('noise')\nif __name__ == '__main__': 1 / 0\ndef add(a, b): return a + b", True),
    ],
)
def test_code_that_passes_its_checks_is_right(code: str, is_right: bool) -> None:
    assert scoring.passes(code, ADD) is is_right


def test_code_that_does_not_end_is_stopped_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TIME_LIMIT_S", 1.0)
    started_s = time.monotonic()
    mark = f"60.{time.time_ns()}"  # another run of this test may be under way
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{mark}'])\nwhile True: pass"
    assert not scoring.passes(code, ADD)
    assert time.monotonic() - started_s < 20
    time.sleep(0.1)
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("4", True),
        ("The answer is **4**.", True),
        ("-4", False),
        ("2.4", False),
        ("14", False),
        ("4 of them", False),
        ("FOUR", True),
    ],
)
def test_an_answer_ends_with_what_is_right(text: str, is_right: bool) -> None:
    assert scoring.ends_with(text, ["4", "four"]) is is_right


def test_predictions_are_compared_by_hand() -> None:
    first, second = np.log(np.array([[[1, 1]] * 3, [[3, 1]] * 3], np.float32))
    found = beside([first], [second], [[0, 0, 1]])  # one token that it expects more, and one less
    assert found.perplexity_ratio.value == pytest.approx((0.5 / 0.75 * 0.5 / 0.25) ** 0.5)
    assert found.kl == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25), rel=1e-6)
    assert found.same_argmax == 1
    assert beside([first], [first], [[0, 0, 1]]).kl == 0


def test_greedy_texts_part_where_a_gap_is_known() -> None:
    def model(turn: int) -> Greedy:
        def logits(ids: list[int], start: int) -> np.ndarray:
            best = 1 if start + len(ids) == turn else 0
            return np.eye(3, dtype=np.float32)[[best]] * (0.25 if best else 2)

        return Greedy.of(logits, [5, 5])

    parted = model(7).first_difference(model(0))
    assert parted == {"position": 5, "gap": 0.25, "reference_gap": 2}
    assert model(7).first_difference(model(7)) is None


@pytest.mark.parametrize("is_equal", [True, False])
def test_answers_with_the_draft_must_be_the_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_equal: bool
) -> None:
    def answers(url: str, asked: list[scoring.Task], num_at_once: int, **fields: Any) -> list[str]:
        return ["4" if is_equal or fields else "four"] * len(asked)

    monkeypatch.setattr(tasks, "answers", answers)
    monkeypatch.setattr(
        tasks, "tasks", lambda: [each for each in scoring.tasks() if each.kind == "questions"]
    )
    output = tmp_path / "found.json"
    command = ["int8=http://127.0.0.1:1", "--output", str(output)]
    assert tasks.main(command) == (0 if is_equal else 1)
    found = json.loads(output.read_text(encoding="utf-8"))["servers"]["int8"]
    assert found["num_different"] == (0 if is_equal else 40)
    assert found["passed"] == ({"questions": 1} if is_equal else {})
