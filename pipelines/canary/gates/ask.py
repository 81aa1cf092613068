"""Wait for the verdict of a gate server and return it as exit code, for jobs of Argo Rollouts.

``python -m pipelines.canary.gates.ask --url http://host:8010 --candidate demo-int8 --wait-s 3600``

Exit codes: 0 promoted; 1 rolled back; 2 wrong usage; 3 no decision in time, or no answer. The last line of
standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from pipelines.program import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, run_program

_TIMEOUT_S = 10.0
_EXIT = {"promote": EXIT_PASS, "roll_back": EXIT_FAIL}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.canary.gates.ask", description=__doc__)
    parser.add_argument("--url", required=True, help="address of the gate server, such as http://host:8010")
    parser.add_argument(
        "--candidate", default="", help="recipe of the candidate (default: the latest rollout)"
    )
    parser.add_argument(
        "--wait-s", type=float, default=0.0, help="seconds to wait for a decision (%(default)s)"
    )
    parser.add_argument(
        "--every-s", type=float, default=15.0, help="seconds between two requests (%(default)s)"
    )
    options = parser.parse_args(arguments)
    return run_program(lambda: _wait(options))


def _wait(options: argparse.Namespace) -> int:
    give_up_at_s = time.monotonic() + options.wait_s
    while True:
        found = _ask(options.url, options.candidate)
        code = _exit_code(found)
        if code != EXIT_INCONCLUSIVE or time.monotonic() >= give_up_at_s:
            print(json.dumps(found))
            return code
        time.sleep(options.every_s)


def _ask(url: str, candidate: str) -> dict[str, Any]:
    query = {"candidate": candidate} if candidate else {}
    try:
        answer = httpx.get(f"{url}/verdict", params=query, timeout=_TIMEOUT_S)
        found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        said = f"no gate server answers at {url}: {error!r}; start it with 'draftproof canary serve'"
        return {"error": said}
    return found


def _exit_code(found: dict[str, Any]) -> int:
    return _EXIT.get(found.get("action", ""), EXIT_INCONCLUSIVE)


if __name__ == "__main__":
    sys.exit(main())
