"""Load the training text: source files of the interpreter's standard library, split by module.

Held-out modules and their tests are used neither for training the tokenizer nor for training the models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sysconfig
from pathlib import Path

from pipelines.errors import DraftproofError

HELD_OUT_MODULES = (
    "asyncio/queues", "calendar", "cmd", "configparser", "csv", "email/message", "fnmatch", "getopt",
    "gettext", "heapq", "http/cookies", "imaplib", "json/encoder", "logging/config", "mailbox", "pprint",
    "queue", "sched", "shelve", "shlex", "statistics", "tabnanny", "textwrap", "unittest/suite",
)  # fmt: skip
"""Modules reserved for validation and for the prompts of the demonstration, as paths without ``.py``."""

_EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings", "pydoc_data",
     "site-packages", "__pycache__"}
)  # fmt: skip
_TEST_SIZES = range(1_000, 150_001)
_MAX_NON_ASCII = 0.005
_MAX_DIGITS = 0.08


class DemoPairError(DraftproofError):
    """The demonstration pair cannot be trained or evaluated."""

    code = "demo_pair"


@dataclasses.dataclass(frozen=True)
class Document:
    """A source file: its path relative to the library's folder (with ``/``) and its text."""

    path: str
    text: str


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The three parts of the text, and a hash that identifies it.

    Attributes:
        library: Modules for training.
        tests: Files of the library's test suite, also for training.
        held_out: Modules that are never used for training.
        sha256: Hash over the path and the content of every file in the three parts.
    """

    library: tuple[Document, ...]
    tests: tuple[Document, ...]
    held_out: tuple[Document, ...]
    sha256: str


def standard_library() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def module_name(path: str) -> str:
    """Return a document's module as a path without suffix: ``json/encoder`` for ``json/encoder.py``."""
    return path.removesuffix(".py")


def is_held_out_test(stem: str) -> bool:
    """Return whether ``test_<stem>.py`` may test a held-out module or its package."""
    for module in HELD_OUT_MODULES:
        names = {module.replace("/", "_"), *module.split("/")}
        if any(stem == name or stem.startswith(f"{name}_") for name in names):
            return True
    return False


def _is_ordinary(text: str) -> bool:
    """Return whether a test file is ordinary code rather than tables of characters or numbers."""
    if len(text.encode()) not in _TEST_SIZES:
        return False
    non_ascii = sum(not character.isascii() for character in text)
    digits = sum(character.isdigit() for character in text)
    return non_ascii <= _MAX_NON_ASCII * len(text) and digits <= _MAX_DIGITS * len(text)


def _read(root: Path, path: Path) -> Document | None:
    """Read a file; return None if it is empty or not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    return Document(path.relative_to(root).as_posix(), text) if text.strip() else None


def _library_files(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*.py")
        if not _EXCLUDED_FOLDERS.intersection(path.relative_to(root).parts[:-1])
        and not path.relative_to(root).parts[0].startswith("config-")
        and not path.name.startswith("_sysconfigdata")
    )


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the standard library and split it by module.

    Args:
        root: Folder of a standard library; the running interpreter's by default.

    Returns:
        The corpus, each part sorted by path.

    Raises:
        DemoPairError: A held-out module is missing; this is no CPython standard library with sources.
    """
    root = root or standard_library()
    library: list[Document] = []
    held_out: list[Document] = []
    for path in _library_files(root):
        document = _read(root, path)
        if document is not None:
            (held_out if module_name(document.path) in HELD_OUT_MODULES else library).append(document)
    tests = [
        document
        for path in sorted((root / "test").glob("test_*.py"))
        if not is_held_out_test(path.stem.removeprefix("test_"))
        and (document := _read(root, path)) is not None
        and _is_ordinary(document.text)
    ]
    missing = set(HELD_OUT_MODULES) - {module_name(document.path) for document in held_out}
    if missing:
        raise DemoPairError(
            f"held-out modules of the standard library are missing under {root}: "
            f"{', '.join(sorted(missing))}",
            "use a CPython that includes its .py files",
        )
    digest = hashlib.sha256()
    for document in (*library, *tests, *held_out):
        digest.update(f"{document.path}\0".encode())
        digest.update(hashlib.sha256(document.text.encode()).digest())
    return Corpus(tuple(library), tuple(tests), tuple(held_out), digest.hexdigest())
