"""Tests of plain English: how docstrings begin, and words that only this project used."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator

from tests.conftest import REPOSITORY_ROOT, tracked_files

SOURCES = ("build/", "pipelines/", "benchmarks/", "tools/", "model_repository/", "docs/", "tests/")
TEXTS = (*SOURCES, ".ci/", "Makefile")
THIS_FILE = "tests/unit/repository/test_language.py"  # it quotes the words
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/")

# Beginnings that say neither what is done nor what the thing is.
RIDDLES = re.compile(r"(Of|That|Those|What|Where|Which|Who|Whose|As|Or|Else|One for|One of them)\b")
RIDDLE_OF_AN_ATTRIBUTE = re.compile(r"^ +\w+: Of\b.*", re.MULTILINE)

# The project's own words, and what the field says.
WORDS = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bdear(er)?\b": "expensive",
    r"\bnonsense\b": "invalid",
    r"makes? no sense": "is invalid",
    r"\bgo(es|ne)? on with\b": "resume, continue",
    r"\bsen(d|t|ds) away\b": "roll back",
    r"\brequests at once\b": "concurrent requests",
    r"\b(follows?|the) law of\b(?! the iterated)": "distribution",
    r"\bfor nothing\b": "free, without cost",
}


@functools.cache
def _docstrings(path: str) -> tuple[tuple[int, str], ...]:
    """Return line and text of each docstring, including those of attributes."""
    return tuple(_find_docstrings(path))


def _find_docstrings(path: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse((REPOSITORY_ROOT / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in node.body:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    yield part.lineno, inspect.cleandoc(str(part.value.value))


def _tracked(*folders: str, suffix: str) -> list[str]:
    return [path for path in tracked_files() if path.endswith(suffix) and path.startswith(folders)]


def test_docstrings_begin_with_what_is_done() -> None:
    wrong = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in _tracked(*SOURCES, suffix=".py")
        for line, text in _docstrings(path)
        if RIDDLES.match(text)
    ]
    assert wrong == []


def test_attributes_and_arguments_are_described_by_name() -> None:
    wrong = [
        f"{path}:{line}: {found.group().strip()}"
        for path in _tracked(*SOURCES, suffix=".py")
        for line, text in _docstrings(path)
        for found in RIDDLE_OF_AN_ATTRIBUTE.finditer(text)
    ]
    assert wrong == []


def test_words_are_the_fields_own() -> None:
    wrong = []
    pages = _tracked(*PAGES, suffix=".md")
    texts = [
        path
        for suffix in (".py", ".pbtxt", ".yaml", "Makefile", "run")
        for path in _tracked(*TEXTS, suffix=suffix)
    ]
    for path in (*texts, *pages):
        if path == THIS_FILE:
            continue
        text = (REPOSITORY_ROOT / path).read_text(encoding="utf-8")
        for pattern, better in WORDS.items():
            wrong += [
                f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()!r}: say {better!r}"
                for found in re.finditer(pattern, text)
            ]
    assert wrong == []
