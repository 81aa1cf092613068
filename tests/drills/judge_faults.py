"""The drills of the judge: ``draftproof verify`` beside a real server whose answers get a fault on their way.

The server answers each request once; a proxy remembers what it answered. Each fault is planted in all
questions, of a quick comparison and of a whole one, and then in as few as the judge still fails for. What
the recipe's server is not asked or refuses, such as calls of tools, is planted at the tests' pair.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from build.engines import build_engines
from build.recipe import load_recipe
from build.repository import render_recipe
from pipelines.bench.reporting.rates import upper_bound
from pipelines.bench.reporting.section import joint_verdict
from pipelines.command_line.general_prompts import given_prompts
from pipelines.validation.audit import CONFIDENCE
from pipelines.validation.openai.baseline import Baseline, Settings
from pipelines.validation.openai.runs import Run
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.size import MOST_PROMPTS, MOST_TOKENS, Size
from pipelines.validation.stopping import stopped_early
from tests.drills.upstreams import serving_calls
from tests.support.fault_proxy import Memory, fault_proxy
from tests.support.planted_faults import BY_NAME, FAULTS, Fault
from tests.support.ready_server import ready_server

COLUMNS = {
    "Fault": "drill",
    "Reported": "reported",
    "Quick": "quick",
    "Whole": "whole",
    "Questions that show it": "questions",
    "Smallest share found": "smallest_share",
}
# What slow servers are asked in 5 and in 30 minutes, whatever else the machine does meanwhile.
_QUICK, _WHOLE = Size(num_prompts=20, max_tokens=16, is_quick=True), Size(num_prompts=80, max_tokens=32)
_NUM_SHORT = 120
_SHORT_QUICK, _SHORT_WHOLE = Size(None, 24, 16), Size(None, _NUM_SHORT, 16)
_NOT_SHOWN = "not planted"
_SILENCE_S = 3.0
_MOST_SILENT = 10  # each takes as long as the longest silence
_FEW = (1, 2, 4, 8, 16, 32, 64)


def run(options: argparse.Namespace, folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask a server of the recipe and one of the tests' pair, and plant each fault."""
    shown = set()
    with _serving(options.recipe, folder) as url:
        for result in try_faults(Memory(url), about, options.only):
            if result["questions"] or not BY_NAME[result["drill"]].is_fault:
                shown.add(result["drill"])
                yield result
    prompts = folder / "short.txt"
    prompts.write_text("\n---\n".join(f"x{number} = [" for number in range(_NUM_SHORT)), encoding="utf-8")
    of_tests = about.setdefault("tests' pair", {})
    given = {"quick": _SHORT_QUICK, "whole": _SHORT_WHOLE, "prompts": prompts}
    with serving_calls(folder / "calls") as (url, no_spaces):
        body = {"logit_bias": no_spaces}
        yield from try_faults(Memory(url), of_tests, options.only, leave_out=shown, body=body, **given)


@contextmanager
def _serving(recipe_name: str, folder: Path) -> Iterator[str]:
    recipe = load_recipe(recipe_name, "embedded")
    engines = build_engines(recipe)
    directory = render_recipe(recipe, Path(engines["draft"]), Path(engines["target"]), folder).parent
    with ready_server(directory, with_openai=True) as server:
        yield f"http://127.0.0.1:{server.ports.openai}"


def try_faults(
    memory: Memory,
    about: dict[str, Any],
    only: str = "",
    *,
    leave_out: Collection[str] = (),
    quick: Size = _QUICK,
    whole: Size = _WHOLE,
    prompts: Path | None = None,
    body: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Record a quick and a whole baseline, and plant the faults whose name contains a text.

    Args:
        memory: The server.
        about: Conditions, which get the size of both baselines.
        only: The text.
        leave_out: Names of faults that are not planted.
        quick: Size of the quick comparison.
        whole: Size of the whole one.
        prompts: File of prompts; None for the general ones.
        body: Fields of each request.
    """
    recorded = [_recorded(memory, size, prompts, body or {}) for size in (quick, whole)]
    for name, baseline in zip(("quick", "whole"), recorded, strict=True):
        about[name] = dict(Counter(question.kind for question in baseline.answers.questions))
        about["not_checked"] = list(baseline.not_checked)
    for fault in FAULTS:
        if only in fault.name and fault.name not in leave_out:
            yield _try(memory, fault, *recorded, body or {})


def _recorded(memory: Memory, size: Size, prompts: Path | None, body: Mapping[str, Any]) -> Baseline:
    settings = Settings(size.num_prompts or MOST_PROMPTS, size.max_tokens or MOST_TOKENS)
    drawn = given_prompts(prompts).draw(settings.num_prompts)
    with stopped_early(size.minutes) as ends_at_s, fault_proxy(memory, BY_NAME["nothing"]) as right:
        recording = Run([], size=size, ends_at_s=ends_at_s)
        return recording.record_control(Endpoint(right.url, body=body), drawn, settings)


def _try(
    memory: Memory, fault: Fault, quick: Baseline, whole: Baseline, body: Mapping[str, Any]
) -> dict[str, Any]:
    most = _MOST_SILENT if fault.sent == "silent" else None
    of_quick, _, _ = _judged(memory, fault, quick, most, body)
    of_whole, sentence, num_hit = _judged(memory, fault, whole, most, body)
    if fault.is_fault and not num_hit:  # the server never answers so that it could show
        of_quick = of_whole = _NOT_SHOWN
    share = None
    if of_whole == "fail":
        few = (each for each in _FEW if each < num_hit)
        num = next((each for each in few if _judged(memory, fault, whole, each, body)[0] == "fail"), num_hit)
        share = upper_bound(num - 1, len(whole.answers.questions) if most else num_hit, CONFIDENCE)
    faults = [
        f"{verdict} of the {size} run"
        for size, verdict in (("quick", of_quick), ("whole", of_whole))
        if (verdict == "fail") != fault.is_fault and (size == "whole" or not fault.is_fault)
    ]
    return {
        "drill": fault.name,
        "reported": fault.reported,
        "quick": of_quick,
        "whole": of_whole,
        "questions": num_hit,
        "smallest_share": None if share is None else f"{share:.1%}",
        "sentence": sentence,
        "faults": faults,
    }


def _judged(
    memory: Memory, fault: Fault, baseline: Baseline, most: int | None, body: Mapping[str, Any]
) -> tuple[str, str, int]:
    """Return verdict and sentence, and how many questions met the fault."""
    with (
        fault_proxy(memory, fault, most=most) as planted,
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
        stopped_early(None),
    ):
        judging = Run([], timeout_s=_SILENCE_S)
        sections, _ = judging.compare_with_baseline(baseline, "", Endpoint(planted.url, body=body))
        return joint_verdict(sections), sections[0].summary, len(planted.hits)
