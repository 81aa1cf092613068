"""Tests of the documents: commands, links and names exist, and hand-written tables agree with the code."""

from __future__ import annotations

import ast
import importlib.util
import re

from pipelines.__main__ import PROGRAMS
from pipelines.speculation.log_probs import MAX_LOG_PROBS
from pipelines.speculation.sampling.params import MAX_LOGIT_BIASES
from pipelines.text.words import MAX_WORDS
from pipelines.triton.backend.header import MAX_PARAMETERS_BYTES, MAX_TIMEOUT_US
from pipelines.wire.request import MAX_ID_BYTES
from tests.conftest import REPOSITORY_ROOT, tracked_files

DOCUMENTS = {
    path: (REPOSITORY_ROOT / path).read_text(encoding="utf-8")
    for path in tracked_files()
    if path.endswith(".md")
}
PAGES = {path: text for path, text in DOCUMENTS.items() if path != "CHANGELOG.md"}
"""Excludes what describes the day of its date."""

README = DOCUMENTS["README.md"]
REQUESTS = DOCUMENTS["docs/reference/requests.md"]
LONGEST_README_LINES = 110
MOST_PAGES = 35
MAKEFILE = (REPOSITORY_ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):.*## ", MAKEFILE, re.MULTILINE))
SETTINGS = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))


def _blocks(document: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_readme_is_short_and_pages_are_few() -> None:
    assert len(README.splitlines()) < LONGEST_README_LINES
    assert len(DOCUMENTS) <= MOST_PAGES


def test_every_command_in_a_block_exists_with_its_settings() -> None:
    for page, text in PAGES.items():
        for line in "".join(_blocks(text, "bash")).splitlines():
            program, *words = line.partition(" #")[0].split()
            if program == "make":
                assert words[0] in TARGETS, f"{page}: {line}"
                for name in re.findall(r"\b([A-Z_]+)=", " ".join(words)):
                    assert name in SETTINGS, f"{page}: {line}"
            elif program.endswith("draftproof"):
                assert words[0] in PROGRAMS, f"{page}: {line}"


def test_every_make_command_in_the_prose_of_all_documents_exists() -> None:
    for page, text in PAGES.items():
        for target in re.findall(r"`make ([a-z][a-z-]*)", text):
            assert target in TARGETS, f"{page}: make {target}"
        for name in re.findall(r"`make [^`]*?\b([A-Z_]+)=", text):
            assert name in SETTINGS, f"{page}: {name}="


def test_the_modules_that_documents_run_exist() -> None:
    for page, text in PAGES.items():
        current = re.sub(r"^.*, commit [0-9a-f]{10}, .*$", "", text, flags=re.MULTILINE)  # of a measurement
        for module in re.findall(r"python -m ((?:build|pipelines|benchmarks|tools|docs)[\w.]*)", current):
            path = REPOSITORY_ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {module}"


def test_the_python_example_uses_names_that_exist() -> None:
    (example,) = _blocks(README, "python")
    assert example in _blocks(DOCUMENTS["docs/tutorial.md"], "python")
    tree = ast.parse(example)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imported
    for node in imported:
        module = importlib.import_module(str(node.module))
        names = {alias.name: getattr(module, alias.name) for alias in node.names}
        for attribute in ast.walk(tree):
            owner = attribute.value if isinstance(attribute, ast.Attribute) else None
            if isinstance(attribute, ast.Attribute) and isinstance(owner, ast.Name):
                used = names.get("Client" if owner.id == "client" else owner.id)
                assert used is None or hasattr(used, attribute.attr), attribute.attr


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    for page, text in PAGES.items():
        for link in re.findall(r"(?:\]\(|src=\"|href=\")([^)#\"]+)", text):
            if not link.startswith("http") and "evaluation" not in link:
                assert ((REPOSITORY_ROOT / page).parent / link).exists(), f"{page}: {link}"


def test_every_file_that_a_change_touches_exists() -> None:
    page = DOCUMENTS["docs/how-to/change-draftproof.md"]
    named = re.findall(r"`((?:build|pipelines|tests|docs|tools|deploy)/[\w./-]+)`", page)
    missing = [path for path in named if "NAME" not in path and not (REPOSITORY_ROOT / path).exists()]
    assert len(named) > 20
    assert missing == []


def test_limits_of_requests_are_those_of_the_code() -> None:
    for name, limit in (
        ("num_log_probs", MAX_LOG_PROBS),
        ("stop_words", MAX_WORDS),
        ("bad_words", MAX_WORDS),
        ("session_id", MAX_ID_BYTES),
        ("logit_bias_ids", MAX_LOGIT_BIASES),
        ("timeout", MAX_TIMEOUT_US),
    ):
        assert re.search(rf"^\| `{name}` \|.*\b{limit}\b", REQUESTS, re.MULTILINE), name
    for name, limit in (("request `id`", MAX_ID_BYTES), ("parameters", MAX_PARAMETERS_BYTES)):
        assert re.search(rf"^\| {name} \|.*\b{limit}\b", REQUESTS, re.MULTILINE), name
