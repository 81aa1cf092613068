"""Tests of trials: hostile guides end in a process of their own, with a reason, and harm nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.text import guide_trials
from pipelines.text.guide_trial import NICENESS
from pipelines.text.guide_trials import GuideTrials
from pipelines.text.guides import GrammarCompiler
from tests.attacks import guides as hostile
from tests.support.recording_engine import VOCAB_SIZE, letters

FEW_CPU_SECONDS = 1


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuideTrials]:
    """Trials with the usual limits, but for the time."""
    program = tmp_path_factory.mktemp("trials") / "guide_trial.py"
    source = guide_trials._PROGRAM.read_text()
    assert source.count("CPU_SECONDS = 2\n") == source.count("WALL_SECONDS = 15\n") == 1
    source = source.replace("CPU_SECONDS = 2\n", f"CPU_SECONDS = {FEW_CPU_SECONDS}\n")
    program.write_text(source.replace("WALL_SECONDS = 15\n", "WALL_SECONDS = 60\n"))
    compiler = GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guide_trials, "_PROGRAM", program)
        patch.setattr(guide_trials, "_LIMIT_S", 120.0)
        found = GuideTrials(compiler.tokens)
        asyncio.run(found.ask({"kind": "regex", "text": "[ab]+"}, "regex"))
        yield found
        found.close()


def schema(document: Any) -> dict[str, str]:
    return {"kind": "json_schema", "text": json.dumps(document)}


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (schema(hostile.chain_of_references()), "too deeply"),
        ({"kind": "lark", "text": hostile.chain_of_rules()}, "too deeply"),
        (schema(hostile.patterns_under_all_of()), "takes more than"),
        (schema(hostile.optional_properties()), "takes more than"),
        (schema({"const": hostile.words(250_000)}), "const has 250002 bytes"),
        (schema({"anyOf": [{"enum": [1, "x" * 20_000]}]}), "a value of enum has 20002 bytes"),
        ({"kind": "choice", "text": json.dumps(["x" * 20_000])}, "a choice has 20000 bytes"),
        ({"kind": "regex", "text": "x" * 20_000}, "the regular expression has 20000 bytes"),
        ({"kind": "lark", "text": f'start: "a" | "{"x" * 20_000}"'}, "a literal has 20002 bytes"),
        ({"kind": "lark", "text": f'start: %json {{"const": "{"x" * 20_000}"}} "b"'}, "const has 20002"),
        ({"schemas": ["{}", schema(hostile.chain_of_references())["text"]]}, "too deeply"),
        ({"schemas": [schema(hostile.patterns_under_all_of())["text"]]}, "takes more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_hostile_guide_is_refused_with_its_reason(
    trials: GuideTrials, question: dict[str, Any], found: str
) -> None:
    with pytest.raises(InvalidRequestError, match=found):
        await trials.ask(question, "guide")
    assert await trials.ask({"kind": "regex", "text": "[ab]+"}, "guide")


async def test_memory_is_limited(trials: GuideTrials) -> None:
    """Some of the 200 patterns are one allocation of gigabytes, some machines take too long to get there."""
    with pytest.raises(InvalidRequestError, match=r"memory|takes more than"):
        await trials.ask(schema(hostile.patterns_under_all_of(200)), "guide")


async def test_what_llguidance_refuses_itself_is_left_to_the_compiler(trials: GuideTrials) -> None:
    assert await trials.ask({"kind": "lark", "text": "start: missing"}, "guide")
    answer = await trials.ask({"schemas": ['{"type": "strin"}']}, "guide")
    assert answer["warnings"] == [[]]


async def test_of_several_schemas_the_one_that_is_refused_is_named(trials: GuideTrials) -> None:
    texts = ["{}", "{}", schema(hostile.chain_of_references())["text"], "{}"]
    for _ in range(2):  # tried, and remembered
        with pytest.raises(InvalidRequestError, match=r"third: .*too deeply"):
            await trials.ask({"schemas": texts}, "first", "second", "third", "fourth")


async def test_a_known_guide_costs_nothing(trials: GuideTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("[bc]+", "x" * 20_001):
        with_reason = await asyncio.gather(
            trials.ask({"kind": "regex", "text": text}, "guide"), return_exceptions=True
        )
        with monkeypatch.context() as patch:
            patch.setattr(trials, "_exchange", None)
            again = await asyncio.gather(
                trials.ask({"kind": "regex", "text": text}, "guide"), return_exceptions=True
            )
        assert str(again) == str(with_reason)


def processes_below(parent: int) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        try:
            state, above = (each / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except (OSError, IndexError):
            continue
        if int(above) == parent and state != "Z":
            found += [int(each.name), *processes_below(int(each.name))]
    return found


async def until(condition: Any) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


def program_of_trials() -> int:
    """Return the process that forks for each guide: the first of those with the fixture's program."""
    name = str(guide_trials._PROGRAM).encode()
    return next(each for each in processes_below(os.getpid()) if name in commands_of(each))


def commands_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


async def test_a_trial_is_behind_others_and_ends_when_its_client_leaves(trials: GuideTrials) -> None:
    program = program_of_trials()
    asked = asyncio.ensure_future(trials.ask(schema(hostile.patterns_under_all_of(25)), "guide"))
    behind = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)

    def is_behind() -> bool:
        with suppress(ProcessLookupError):
            return any(os.getpriority(os.PRIO_PROCESS, each) == behind for each in processes_below(program))
        return False

    await until(is_behind)
    asked.cancel()
    await until(lambda: not processes_below(program))
    assert program_of_trials() == program


async def test_few_guides_wait_and_others_are_told_at_once(
    trials: GuideTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide_trials, "_MOST_WAITING", 3)
    crowd = [
        asyncio.ensure_future(trials.ask(schema(hostile.patterns_under_all_of(number)), "guide"))
        for number in (26, 27, 28)
    ]
    await asyncio.sleep(0)
    with pytest.raises(ServerBusyError, match="3 guides wait"):
        await trials.ask({"kind": "regex", "text": "[cd]+"}, "guide")
    for each in crowd:
        each.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_client_that_leaves_while_its_guide_is_handed_over_ends_no_process(
    trials: GuideTrials,
) -> None:
    program = program_of_trials()
    with trials._lock:
        asked = asyncio.ensure_future(trials.ask({"kind": "regex", "text": "[fg]+"}, "guide"))
        await asyncio.sleep(0.05)  # its thread waits for the lock
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    assert await trials.ask({"kind": "regex", "text": "[gh]+"}, "guide")
    assert program_of_trials() == program


async def test_a_killed_process_is_started_again(trials: GuideTrials) -> None:
    program = program_of_trials()
    os.kill(program, signal.SIGKILL)
    with suppress(ServerBusyError):  # if the end of its socket is noticed only while it is asked
        await trials.ask({"kind": "regex", "text": "[de]+"}, "guide")
    assert await trials.ask({"kind": "regex", "text": "[ef]+"}, "guide")
    assert program_of_trials() != program
