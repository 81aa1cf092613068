"""Renders chat templates for ``ChatRenderer``, in a process of its own: reads and writes lines of JSON.

A template is a program that comes with a checkpoint. jinja2's sandbox keeps it from files and Python objects,
but not from endless loops and huge strings, so this process has limits of time and memory and nothing else to
lose. The file imports nothing of Draftproof.

It marks the names of special tokens that the template writes, as ``special_names.py`` describes: whole names
in its texts, and pieces of names at the ends of texts that it prints, joins or assigns.

The environment is that of transformers: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 1  # for one conversation; real ones take milliseconds
MEMORY_BYTES = 512 << 20  # of addresses; Python and jinja2 alone take about 60 MiB
MAX_CHARACTERS = 8 << 20  # of the rendered text


class Generation(Extension):
    """The tag ``generation``, which marks the assistant's tokens for training and renders its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it without ClassVar

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag, with a scope of its own for variables."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; jinja2's own filter escapes ``<``, ``>``, ``&`` and ``'`` for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> None:
    """Refuse the conversation; templates call this."""
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    """Return the local time; templates call this."""
    return datetime.now().strftime(pattern)


class Names:
    """The names of special tokens, and the mark for their characters."""

    def __init__(self, names: tuple[str, ...], mark: str) -> None:
        self._mark = mark
        self._whole = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")
        self._beginnings = {name[:size] for name in names for size in range(1, len(name))}
        self._ends = {name[size:] for name in names for size in range(1, len(name))}
        self._longest = max(map(len, names), default=0)

    def marked(self, text: str, *, is_joined: bool = False) -> str:
        """Return a text with its names marked; and the pieces of names at its ends if it is joined."""
        spans = [name.span() for name in self._whole.finditer(text)]
        if is_joined:
            sizes = range(1, min(self._longest, len(text)) + 1)
            spans += [(0, size) for size in sizes if text[:size] in self._ends]
            spans += [(len(text) - size, len(text)) for size in sizes if text[-size:] in self._beginnings]
        places = {place for begin, end in spans for place in range(begin, end)}
        return "".join(
            character + self._mark if place in places else character for place, character in enumerate(text)
        )


@lru_cache(maxsize=16)
def compiled(source: str, names: Names) -> Template:
    """Compile a template, with its names marked; raises TemplateSyntaxError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    tree = environment.parse(source)
    parents = tree.find_all((nodes.Output, nodes.Add, nodes.Concat, nodes.Assign, nodes.CondExpr))
    joined = {id(node) for parent in parents for node in parent.iter_child_nodes()}
    for data in tree.find_all(nodes.TemplateData):
        data.data = names.marked(data.data, is_joined=True)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            constant.value = names.marked(constant.value, is_joined=id(constant) in joined)
    return environment.from_string(tree)


names_of = lru_cache(maxsize=16)(Names)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return ``text``, or ``error`` with the reason that the template or Python gives."""
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + 1 + CPU_SECONDS, resource.RLIM_INFINITY))
    try:
        names = names_of(tuple(request["names"]), request["mark"])
        tokens = {name: names.marked(token) for name, token in request["special_tokens"].items()}
        text = compiled(request["source"], names).render({**tokens, **request["variables"]})
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except Exception as error:  # whatever a template makes of its variables
        return {"error": f"{type(error).__name__}: {error}".replace(request["mark"], "")[:1000]}
    if len(text) > MAX_CHARACTERS:
        return {"error": f"it wrote {len(text)} characters, and {MAX_CHARACTERS} are allowed"}
    return {"text": text}


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
