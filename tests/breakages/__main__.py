"""Plant each deliberate breakage in a temporary copy of the code and run the tests that must catch it.

``python -m tests.breakages [names]`` tries all breakages, or those whose names contain one of the words
given; ``--list`` names them, ``--at COMMIT`` tries them on another commit. The copy is a worktree of git with
what is committed, so the real tree stays as it is. ``--unbroken`` runs the same tests without any breakage.

``breakages.diff`` has of each breakage its name, the files of tests that must fail, the text to remove and
the one in its place. The text is located wherever its file is by now, and a file of tests by its name.

A breakage is *caught* if its tests fail, *missed* if they pass, and *unclear* if the text does not stand in
exactly one place or the tests do not run. The last line counts them as JSON. Exit code 0: all were caught.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.program import stopped_by_signals

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("pipelines", "build", "tools")
_TESTS = ("tests/unit", "tests/exact", "tests/statistical")
_TIMEOUT_S = 900
_PYTEST_PASSED, _PYTEST_FAILED = 0, 1
_ENTRY = re.compile(r"(?P<name>.+) \((?P<tests>.+)\)\n(?P<removed>(?:- .*\n)+)(?P<added>(?:\+ .*\n)*)")


@dataclass(frozen=True)
class Breakage:
    """One deliberate breakage: its name, the text to remove, the text in its place, and the tests."""

    name: str
    removed: str
    added: str
    tests: tuple[str, ...]


def read_breakages() -> list[Breakage]:
    """Read the entries of ``breakages.diff``."""
    found = []
    for entry in Path(__file__).with_name("breakages.diff").read_text(encoding="utf-8").split("\n\n"):
        if not entry.startswith("# "):
            match = _ENTRY.fullmatch(entry.strip("\n") + "\n")
            assert match, f"not a breakage: {entry}"
            removed, added = (re.sub(r"(?m)^. ", "", match[part])[:-1] for part in ("removed", "added"))
            found.append(Breakage(match["name"], removed, added, tuple(match["tests"].split())))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.breakages", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words in the names of the breakages to try (default: all)")
    parser.add_argument("--at", default="HEAD", metavar="COMMIT", help="commit to break (default: HEAD)")
    parser.add_argument("--list", action="store_true", help="only name the breakages")
    parser.add_argument("--unbroken", action="store_true", help="run the tests without any breakage")
    options = parser.parse_args(arguments)
    words = options.names or [""]
    wanted = [each for each in read_breakages() if any(word in each.name for word in words)]
    if options.unbroken:  # the same tests once
        wanted = list({each.tests: each for each in wanted}.values())
    if options.list:
        print(*(f"{each.name}: {' '.join(each.tests)}" for each in wanted), sep="\n")
        return 0
    results: dict[str, str] = {}
    with stopped_by_signals(), _worktree(options.at) as tree:
        for number, breakage in enumerate(wanted, start=1):
            began_s = time.monotonic()
            result, detail = _unbroken(tree, breakage) if options.unbroken else _try(tree, breakage)
            results[breakage.name] = result
            seconds = time.monotonic() - began_s
            print(
                f"[{number}/{len(wanted)}] {result:8} {breakage.name} ({seconds:.0f} s) {detail}", flush=True
            )
    counts = Counter(results.values())
    print(json.dumps({"commit": options.at, **counts, "not_caught": _names_but(results, "caught", "passed")}))
    return 0 if set(counts) <= {"caught", "passed"} else 1


def _names_but(results: dict[str, str], *kinds: str) -> list[str]:
    return [name for name, result in results.items() if result not in kinds]


@contextmanager
def _worktree(commit: str) -> Iterator[Path]:
    """Check a commit out in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="breakages-") as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(_ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _try(tree: Path, breakage: Breakage) -> tuple[str, str]:
    """Plant a breakage, run its tests and restore the file; returns the result and a detail."""
    sources = read_sources(tree)
    place = place_of(breakage, sources)
    if place is None:
        return "unclear", "its text does not stand in exactly one place"
    source = sources[place]
    place.write_text(source.replace(breakage.removed, breakage.added), encoding="utf-8")
    try:
        exit_code, detail = _run_tests(tree, breakage)
    finally:
        place.write_text(source, encoding="utf-8")
    return {_PYTEST_PASSED: "missed", _PYTEST_FAILED: "caught"}.get(exit_code, "unclear"), detail


def read_sources(tree: Path) -> dict[Path, str]:
    """Return the text of each file that may be broken."""
    files = (path for folder in _SOURCES for path in (tree / folder).rglob("*"))
    return {path: path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".cpp", ".h")}


def place_of(breakage: Breakage, sources: dict[Path, str]) -> Path | None:
    """Return the only file in which the text to remove stands exactly once."""
    counts = {path: text.count(breakage.removed) for path, text in sources.items()}
    found = [path for path, count in counts.items() if count]
    return found[0] if len(found) == 1 and counts[found[0]] == 1 else None


def find_tests(name: str, tree: Path) -> list[Path]:
    """Return the files of tests with a name, wherever they are by now."""
    return [path for folder in _TESTS for path in sorted((tree / folder).rglob(name))]


def _unbroken(tree: Path, breakage: Breakage) -> tuple[str, str]:
    exit_code, detail = _run_tests(tree, breakage)
    return "passed" if exit_code == _PYTEST_PASSED else "failed", detail


def _run_tests(tree: Path, breakage: Breakage) -> tuple[int, str]:
    """Return pytest's exit code, and its last line of output or what was not found."""
    paths = []
    for name in breakage.tests:
        found = find_tests(name, tree)
        if not found:
            return -1, f"there is no {name}"
        paths += [str(path.relative_to(tree)) for path in found]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    # Python 3.11 may fail to parse the source for pytest's own form of a deep traceback.
    command += ["--tb=native", *paths]
    # Hypothesis tries the same examples each time, and takes the first that fails.
    environment = {**os.environ, "CI": "1", "HYPOTHESIS_PROFILE": "unshrunk"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests took more than {_TIMEOUT_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    return done.returncode, (failed or lines[-1:])[0][:150]


if __name__ == "__main__":
    sys.exit(main())
