"""Runs the tests that failed in the last run once more, each alone and in a new process.

Several tests run at once, each with servers of its own, on a machine that others share. If one of them fails
there and passes alone, the machine decided it. The commit is then not refused, and the first failure stays in
the log. Tests of what decides which token comes next are not tried again: one wrong token is a bug. Nothing
is tried again if a worker died, which ends a run before all tests ran.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import NOT_RUN, REPOSITORY_ROOT, UNKNOWN

MAX_TESTS = 5  # more that fail at once have a cause in the code
NEVER_AGAIN = (
    "tests/exact/",
    "tests/statistical/",
    "tests/unit/build/operators/",
    "tests/unit/executor/",
    "tests/unit/repository/",
    "tests/unit/speculation/",
    "tests/unit/validation/",
)
CACHE = REPOSITORY_ROOT / ".pytest_cache" / "v"


def main() -> int:
    """Return 0 if every test that failed passes alone."""
    failed = sorted(json.loads((CACHE / "cache" / "lastfailed").read_text()))
    print(f"failed beside others: {', '.join(failed)}")
    not_run = json.loads((CACHE / NOT_RUN).read_text())
    if not_run:
        number = "some" if not_run == UNKNOWN else not_run
        print(f"not tried again, because {number} tests did not run")
        return 1
    if not 0 < len(failed) <= MAX_TESTS or any(test.startswith(NEVER_AGAIN) for test in failed):
        print(f"not tried again; only 1 to {MAX_TESTS} tests are, and none of {', '.join(NEVER_AGAIN)}")
        return 1
    for test in failed:
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", ""]
        pytest += ["-o", "timeout=1800", "-o", "faulthandler_timeout=2100", test]
        if subprocess.run(pytest, cwd=REPOSITORY_ROOT, check=False).returncode:
            print(f"{test} fails alone, too")
            return 1
    (CACHE / "cache" / "lastfailed").unlink()  # they are not tried again after the next run
    print(f"passed alone; look for the reason in the log above: {', '.join(failed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
