"""Compare the draft length that a server chooses with constants.

``python -m benchmarks.draft_length`` serves a recipe twice: one server has only requests whose length it
chooses, the other those with a constant. Two servers of the same engines differ by up to 6 %, so each is
compared with itself: both are also asked for answers of the target alone. All arms get the same prompt in
turn, in random order. The servers start anew for every number of concurrent requests, so the first pass shows
what a new server does. Exit codes: 0 measured, and all answers are equal; 1 they differ, or a server could
not be built or started; 2 wrong usage. Ctrl-C ends it with what was measured until then.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkout import CheckoutCopy
from benchmarks.draft_length.asking import Prompt, ask_all, read_prompts
from benchmarks.harness import (
    Result,
    interval_cell,
    markdown,
    median_interval,
    parser_of,
    run_benchmark,
    say,
)
from benchmarks.streams import Streamed
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.program import EXIT_FAIL, EXIT_PASS

CHOSEN, CONSTANT = "chosen", "constant"
CONSTANTS = (1, 2, 3, 4)
_TOKENS_TO_READ = 4  # of the answers with which both networks read the prompts: a draft does so after a token
_SEED = 0


@dataclass(frozen=True)
class Setting:
    """What is measured with servers of its own.

    Attributes:
        num_at_once: Concurrent requests.
        temperature: Of all requests.
        constants: Draft lengths of the constant arms.
        num_passes: How often each prompt is asked.
        is_disturbed: Whether other programs keep all cores busy while the servers start.
    """

    num_at_once: int
    temperature: float
    constants: tuple[int, ...]
    num_passes: int
    is_disturbed: bool = False

    def __str__(self) -> str:
        start = ", disturbed start" if self.is_disturbed else ""
        return f"{self.num_at_once} at once, temperature {self.temperature:g}{start}"


SETTINGS = (
    Setting(1, 0.0, CONSTANTS, 2),
    Setting(4, 0.0, (1,), 4),
    Setting(8, 0.0, (1,), 4),
    Setting(1, 0.0, (2, 3), 1, is_disturbed=True),
    Setting(1, 0.7, (2, 3), 1),
    Setting(4, 0.7, (1,), 2),
    Setting(8, 0.7, (1,), 2),
)


@dataclass(frozen=True)
class Arm:
    """What is asked of a server.

    Attributes:
        name: Of the arm.
        server: Name of the server.
        port: Port of its front door.
        length: The draft length; 0 for the target alone, None to let the server choose.
    """

    name: str
    server: str
    port: int
    length: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.draft_length", __doc__ or "", "qwen2-5-coder-cpu")
    parser.add_argument(
        "--max-tokens", type=whole_number(8), default=48, help="tokens of an answer (%(default)s)"
    )
    parser.add_argument(
        "--at-once", type=int, choices=(1, 4, 8), metavar="N", help="only settings with N concurrent requests"
    )
    return run_benchmark(parser, _compare, arguments)


def _compare(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.draft_length", command_line, recipe=options.recipe)
    sets = read_prompts()
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="draft-length-") as scratch:
        copies = {
            name: CheckoutCopy.make(Path(scratch) / name, options.recipe) for name in (CHOSEN, CONSTANT)
        }
        for copy in copies.values():
            copy.build()
        with suppress(KeyboardInterrupt):  # what was measured until then is a result
            for setting in SETTINGS:
                if options.at_once not in (None, setting.num_at_once):
                    continue
                with ExitStack() as stack:
                    other_programs = stack.enter_context(ExitStack())
                    if setting.is_disturbed:
                        other_programs.enter_context(_busy_cores())
                    ports = {
                        name: stack.enter_context(copy.running()).ports.openai
                        for name, copy in copies.items()
                    }
                    other_programs.close()
                    arms = [Arm(f"alone, {name}", name, port, 0) for name, port in ports.items()]
                    arms += [Arm(CHOSEN, CHOSEN, ports[CHOSEN], None)]
                    arms += [Arm(f"{each}", CONSTANT, ports[CONSTANT], each) for each in setting.constants]
                    for each in _measure(setting, arms, sets, options.max_tokens):
                        measured.append(each)
    num_different = sum(each["num_different"] for each in measured)
    document = {"measured": measured, "num_different": num_different, "conditions": about}
    lines = [_table(setting, measured) for setting in SETTINGS if _of(setting, measured)]
    lines.append(f"{num_different} answers differ.")
    return Result("\n\n".join(lines), document, EXIT_FAIL if num_different else EXIT_PASS)


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Keep every core busy until the block ends."""
    programs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _measure(
    setting: Setting, arms: Sequence[Arm], sets: dict[str, list[Prompt]], max_tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield the speeds of all arms on each block of prompts: one prompt, or all of a kind under load."""
    order = random.Random(_SEED)
    blocks = [
        block
        for prompts in sets.values()
        for block in ([[each] for each in prompts] if setting.num_at_once == 1 else [prompts])
    ]
    for number in range(setting.num_passes):
        for block in order.sample(blocks, len(blocks)):
            for port in {arm.port for arm in arms}:
                ask_all(port, block, setting.num_at_once, _TOKENS_TO_READ, 0.0, 1)
            speeds: dict[str, float] = {}
            answers: dict[str, list[Streamed]] = {}
            for arm in order.sample(arms, len(arms)):
                asked = ask_all(
                    arm.port, block, setting.num_at_once, max_tokens, setting.temperature, arm.length
                )
                answers[arm.name], seconds = asked
                speeds[arm.name] = (
                    answers[arm.name][0].tokens_per_s
                    if setting.num_at_once == 1
                    else sum(each.num_tokens for each in answers[arm.name]) / seconds
                )
            texts = [[each.text for each in given] for given in answers.values()]
            alone = {arm.server: speeds[arm.name] for arm in arms if arm.length == 0}
            ratios = {arm.name: speeds[arm.name] / alone[arm.server] for arm in arms if arm.length != 0}
            shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
            say(f"{setting}, pass {number + 1}, {block[0].kind}: alone {alone[CHOSEN]:.1f} tokens/s; {shown}")
            yield {
                "setting": str(setting),
                "num_at_once": setting.num_at_once,
                "temperature": setting.temperature,
                "pass": number + 1,
                "kind": block[0].kind,
                "tokens_per_s": {name: round(speed, 3) for name, speed in speeds.items()},
                "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
                "num_different": sum(given != texts[0] for given in texts),
            }


def _table(setting: Setting, measured: Sequence[dict[str, Any]]) -> str:
    """Return the medians of the ratios to the target alone of the same server, by kind of text."""
    mine = _of(setting, measured)
    kinds = list(dict.fromkeys(each["kind"] for each in mine))
    rows = []
    for name in [*map(str, setting.constants), CHOSEN]:
        for number in range(1, setting.num_passes + 1) if name == CHOSEN else [0]:
            passes = [each for each in mine if number in (0, each["pass"])]
            cells = [
                _cell([each["ratios"][name] for each in passes if each["kind"] == kind]) for kind in kinds
            ]
            rows.append(
                [f"{name}{f', pass {number}' if number else ''}", *cells, _geometric_mean(passes, name)]
            )
    return f"{setting}\n\n" + markdown(["Draft length", *kinds, "geometric mean"], rows)


def _of(setting: Setting, measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in measured if each["setting"] == str(setting)]


def _cell(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""  # the run was stopped before this pass
    if len(ratios) < 4:
        return f"{statistics.median(ratios):.2f}"
    return f"{interval_cell(median_interval(ratios), 2)}, least {min(ratios):.2f}"


def _geometric_mean(mine: Sequence[dict[str, Any]], name: str) -> str:
    return f"{statistics.geometric_mean(each['ratios'][name] for each in mine):.2f}" if mine else ""


if __name__ == "__main__":
    sys.exit(main())
