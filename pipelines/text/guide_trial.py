"""Tries guides for ``GuideTrials`` before a process that others share compiles them.

A guide can overflow llguidance's stack, or compile without end. So this program loads the vocabulary once and
forks for each guide; the fork has limits and nothing else to lose. The file imports nothing of Draftproof.

Source: llguidance 1.9, https://github.com/guidance-ai/llguidance.
"""

from __future__ import annotations

import gc
import json
import marshal
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CPU_SECONDS = 2
WALL_SECONDS = 15
"""The largest guides take 0.3 s of a processor, and a trial gets what the engine's steps leave."""

NICENESS = 7
"""Beside the engine's steps, which come first; with 5, another stream kept three quarters of its speed."""

MEMORY_BYTES = 1 << 30
STACK_BYTES = 4 << 20
"""Threads that compile what passed have a larger one."""

MAX_LITERAL_BYTES = 16 << 10
MAX_MASK_SECONDS = 0.02
"""For one mask, and for one call for forced tokens; usual guides take less than a millisecond."""

MOST_FORCED_CHARACTERS = 1000
"""Most characters of a forced text that the tokenizer is given at once."""

MAX_LEXER_STATES = 50_000
MAX_WARNINGS = 100  # of one schema

_ANY_JSON = '{"type": "object"}'
_JSON_DEFAULTS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}
"""Models have filled answers with spaces to their end where any number was allowed."""

_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?<![/\w])/(?:[^/\\\n]|\\.)+/')
_REASONS: dict[int, str] = {
    signal.SIGSEGV: "it is nested too deeply, or its references or rules form too long a chain",
    signal.SIGXCPU: f"compiling it takes more than {CPU_SECONDS} s",
    signal.SIGKILL: f"compiling it takes more than {CPU_SECONDS} s",
    signal.SIGABRT: f"compiling it needs more than {MEMORY_BYTES >> 20} MiB of memory",
}


def grammar_of(kind: str, text: str) -> str:
    """Return a guide as llguidance reads it; raises ValueError, TypeError or RecursionError."""
    import llguidance

    if kind == "json_schema":
        schema = json.loads(text or _ANY_JSON)
        own = schema.get("x-guidance", {}) if isinstance(schema, dict) else {}
        defaults = None if "whitespace_flexible" in own else _JSON_DEFAULTS
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=defaults))  # type: ignore[arg-type]
    if kind == "choice":
        choices = json.loads(text)
        is_list = isinstance(choices, list) and len(choices) > 0
        if not is_list or not all(isinstance(choice, str) and choice for choice in choices):
            raise ValueError("it must be a JSON list of texts that are not empty")
    return str(llguidance.grammar_from(kind, text))  # type: ignore[arg-type]


def limits_of(max_lexer_states: int) -> Any:
    """Return limits that keep a hostile grammar from holding up other requests."""
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=max_lexer_states,
        verbose_errors=False,
    )


def check_literals(kind: str, text: str) -> None:
    """Refuse literals that force a long text, for which a lexer may have no room.

    Raises:
        ValueError: A literal is longer than ``MAX_LITERAL_BYTES``.
    """
    for name, literal in _literals(kind, text):
        if (size := len(literal.encode())) > MAX_LITERAL_BYTES:
            raise ValueError(f"{name} has {size} bytes, and at most {MAX_LITERAL_BYTES} are allowed")


def _literals(kind: str, text: str) -> Iterator[tuple[str, str]]:
    if kind == "regex":
        yield "the regular expression", text
    elif kind == "choice":
        yield from (("a choice", choice) for choice in json.loads(text))
    elif kind == "json_schema":
        yield from _literals_of_schema(json.loads(text or _ANY_JSON))
    else:
        rest = []
        first, *parts = text.split("%json")
        for part in parts:
            try:
                schema, end = json.JSONDecoder().raw_decode(part := part.lstrip())
            except ValueError:  # llguidance will name the place
                rest.append(part)
                continue
            yield from _literals_of_schema(schema)
            rest.append(part[end:])
        yield from (("a literal", found[0]) for each in (first, *rest) for found in _QUOTED.finditer(each))


def _literals_of_schema(schema: Any) -> Iterator[tuple[str, str]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            yield from (("the name of a property", name) for name in part)
            yield from (("a pattern", part[name]) for name in ("pattern",) if isinstance(part.get(name), str))
            values = part["enum"] if isinstance(part.get("enum"), list) else []
            yield from (("a value of enum", json.dumps(value, ensure_ascii=False)) for value in values)
            if "const" in part:
                yield "const", json.dumps(part["const"], ensure_ascii=False)


def check_costs(matcher: Any) -> None:
    """Refuse a matcher at the beginning whose masks or forced tokens take too long.

    Raises:
        ValueError: Even the quickest of the first three takes more than ``MAX_MASK_SECONDS``.
    """
    masks, forced = matcher.deep_copy(), matcher.deep_copy()
    times_of_masks, times_of_forced = [], []
    for _ in range(3):
        began_s = time.thread_time()
        masks.compute_bitmask()
        times_of_masks.append(time.thread_time() - began_s)
        began_s = time.thread_time()
        ids = forced.compute_ff_tokens()
        times_of_forced.append(time.thread_time() - began_s)
        if ids:
            masks.consume_token(ids[0])
            forced.consume_token(ids[0])
    for name, times in (("a mask", times_of_masks), ("a call for forced tokens", times_of_forced)):
        if min(times) > MAX_MASK_SECONDS:
            raise ValueError(f"{name} takes {min(times):.3f} s, and at most {MAX_MASK_SECONDS} are allowed")


class _Tokens:
    """The vocabulary, and the greedy tokens of a text, which cost about what the tokenizer's do."""

    bos_token_id = None
    is_tokenizer_wrapper = True
    tokenizer: Any = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int]) -> None:
        self.tokens, self.special_token_ids = tokens, special_token_ids
        self.eos_token_id = len(tokens) - 1

    def __call__(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return []
        return list(self.tokenizer.greedy_tokenize(text[:MOST_FORCED_CHARACTERS]))


def _answer(question: dict[str, Any], tokenizer: Any, connection: socket.socket) -> dict[str, Any]:
    if "schemas" in question:
        found = []
        for schema in question["schemas"]:
            found.append(_warnings(schema))
            connection.sendall(b" ")  # so that an end tells which of them was its cause
        return {"warnings": found}
    import llguidance

    kind, text = question["kind"], question["text"]
    grammar = grammar_of(kind, text)
    check_literals(kind, text)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits_of(MAX_LEXER_STATES))
    if not matcher.is_error():  # what llguidance refuses, whoever asks will hear from it again
        check_costs(matcher)
    return {"is_passed": True}


def _warnings(schema: str) -> list[str]:
    """Return what of a schema no grammar enforces; none if llguidance refuses it, as the engine will say."""
    import llguidance

    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    except ValueError:
        return []
    is_wrong, reasons = llguidance.LLMatcher.validate_grammar_with_warnings(
        grammar, limits=limits_of(MAX_LEXER_STATES)
    )
    return [] if is_wrong else [reason[:500] for reason in reasons[:MAX_WARNINGS]]


def _try(connection: socket.socket, tokenizer: Any) -> None:
    """Answer one question within the limits of this process."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    os.nice(NICENESS)
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + CPU_SECONDS, spent + CPU_SECONDS + 1))
    with connection.makefile("rb") as asked:
        question = json.loads(asked.readline())
    try:
        answer = _answer(question, tokenizer, connection)
    except MemoryError:
        answer = {"error": _REASONS[signal.SIGABRT]}
    except BaseException as error:  # also a panic of llguidance
        answer = {"error": f"{error}"[:1000]}
    connection.sendall(json.dumps(answer).encode())


def _watch(connection: socket.socket, tokenizer: Any) -> None:
    """Try one guide in a fork, which ends with its time, or when nobody waits any more."""
    alive, held = os.pipe()
    child = os.fork()
    if not child:
        os.close(alive)
        _try(connection, tokenizer)
        os._exit(0)
    os.close(held)
    ends = select.poll()
    ends.register(alive, 0)  # hangs up when the fork ends
    ends.register(connection, 0)
    ended = {fd for fd, _ in ends.poll(WALL_SECONDS * 1000)}
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    spent_s = usage.ru_utime + usage.ru_stime
    if not ended and spent_s < CPU_SECONDS / 4:
        connection.sendall(b'{"is_busy": true}')
    elif not ended:
        connection.sendall(json.dumps({"error": f"compiling it is not over after {spent_s:.1f} s"}).encode())
    elif alive in ended and status:
        reason = _REASONS.get(os.WTERMSIG(status), f"compiling it ends with status {status}")
        connection.sendall(json.dumps({"error": reason}).encode())


def main() -> None:
    """Read the vocabulary from standard input, then try guides, each over a socket that arrives."""
    sys.path.append(sys.argv[2])
    import llguidance

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = marshal.load(sys.stdin.buffer)
    tokenizer = None
    if vocabulary is not None:
        tokens = _Tokens(*vocabulary)
        tokenizer = tokens.tokenizer = llguidance.LLTokenizer(tokens, n_vocab=len(tokens.tokens))  # type: ignore[arg-type]
    gc.freeze()  # so that forks copy no page of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a watch ended
    control = socket.socket(fileno=int(sys.argv[1]))
    os.setsid()
    with suppress(OSError):  # Linux may compare the niceness of sessions instead of processes
        Path("/proc/self/autogroup").write_text(f"{NICENESS}")
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _watch(connection, tokenizer)
                os._exit(0)


if __name__ == "__main__":
    main()
