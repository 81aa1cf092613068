"""Runs a few of the tests that only ``make test-all`` runs, chosen by the commit."""

from __future__ import annotations

import random
import subprocess
import sys

from tests.conftest import REPOSITORY_ROOT

NUM_TESTS = 4


def main() -> int:
    """Run the sample and return pytest's exit code."""
    pytest = [sys.executable, "-m", "pytest", "-m", "long", "-o", "timeout=3600"]
    pytest += ["-o", "faulthandler_timeout=3900"]
    listed = subprocess.run(
        [*pytest, "--collect-only", "-q", "tests"],
        cwd=REPOSITORY_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if listed.returncode:
        print(listed.stdout)
        return listed.returncode
    tests = [line for line in listed.stdout.splitlines() if "::" in line]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    chosen = sorted(random.Random(commit).sample(tests, min(NUM_TESTS, len(tests))))
    print(f"{len(chosen)} of {len(tests)} long tests, chosen by commit {commit[:10]}", flush=True)
    return subprocess.run([*pytest, *chosen], cwd=REPOSITORY_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
