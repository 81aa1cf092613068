"""Tasks with one right answer: functions to complete, whose checks run, and questions.

The checks run code that a model wrote, with the rights of the user: in a process of its own, in an empty
folder, without the environment, and with limits on time, memory and the size of files. That stops mistakes,
not an attack.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 512 << 20

_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_COMPLETE = """Complete this Python function:

```python
{begin}```

Answer with the whole function in one code block. Leave out its docstring, comments and explanations."""
_ANSWER = "{ask} Answer with the result alone."
# The process limits itself before it runs the code, and has no name of a program that tests itself.
_RUN = """
import resource, sys
for limit, value in ((resource.RLIMIT_AS, {memory}), (resource.RLIMIT_CPU, {seconds}),
                     (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (value, value))
exec(compile(sys.stdin.read(), "answer", "exec"), {{"__name__": "answer"}})
"""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        kind: ``functions`` or ``questions``.
        prompt: What a model is asked.
        max_tokens: Longest answer.
        is_right: Judges an answer.
    """

    kind: str
    prompt: str
    max_tokens: int
    is_right: Callable[[str], bool]


def tasks() -> list[Task]:
    """Return all tasks, from the files beside this one."""
    functions, questions = (
        yaml.safe_load(Path(__file__).with_name(f"{kind}.yaml").read_text(encoding="utf-8"))
        for kind in ("functions", "questions")
    )
    return [
        *(
            Task("functions", _COMPLETE.format(**each), 320, partial(passes, checks=each["checks"]))
            for each in functions
        ),
        *(
            Task("questions", _ANSWER.format(**each), 48, partial(ends_with, answers=each["answers"]))
            for each in questions
        ),
    ]


def ends_with(text: str, answers: list[str]) -> bool:
    """Return whether a text ends with one of the answers, in small or capital letters."""
    said = text.strip(" \n`'\"*.").lower()
    return any(re.search(rf"(?<![\w.-]){re.escape(each.lower())}\Z", said) for each in answers)


def passes(text: str, checks: str) -> bool:
    """Return whether the code of an answer passes checks: that of its first block, or all of it.

    Args:
        text: The answer.
        checks: Python code that fails if the answer is wrong.
    """
    block = _FENCE.search(text)
    passed = secrets.token_hex()  # an answer that ends the process early has not passed
    code = f"{block[1] if block else text}\n{checks}\nprint({passed!r})\n"
    run = _RUN.format(memory=MEMORY_LIMIT_BYTES, seconds=int(TIME_LIMIT_S))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", run],
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=output,  # no pipe, which a process that it starts could hold open
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(code.encode(), timeout=TIME_LIMIT_S)
        finally:
            with suppress(ProcessLookupError):  # with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return process.returncode == 0 and output.read().decode(errors="replace").endswith(f"{passed}\n")
