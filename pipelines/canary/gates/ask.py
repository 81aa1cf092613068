"""Asks a server of gates what follows and ends with it as the exit code, as an Argo Rollouts job does.

``python -m pipelines.canary.gates.ask --url http://host:8010 --candidate demo-int8 --wait-s 3600``

Exit codes: 0 it is promoted; 1 it is rolled back; 2 wrong usage; 3 neither to the end, or no answer. The
last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from pipelines.command_line import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from pipelines.errors import DraftproofError, ServerUnavailableError

_TIMEOUT_S = 10.0
_EXIT = {"promote": EXIT_PASS, "roll_back": EXIT_FAIL}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.canary.gates.ask", description=__doc__)
    parser.add_argument("--url", required=True, help="of the gates, such as http://host:8010")
    parser.add_argument("--candidate", default="", help="recipe that is asked about (default: the latest)")
    parser.add_argument("--wait-s", type=float, default=0.0, help="for a verdict (%(default)s)")
    parser.add_argument("--every-s", type=float, default=15.0, help="between two questions (%(default)s)")
    options = parser.parse_args(arguments)
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
        return {"error": str(_silent(url, f"{type(error).__name__}: {error}"))}
    return found


def _silent(url: str, values: str) -> DraftproofError:
    return ServerUnavailableError(
        f"no gates answer at {url}", values=values, remedy="start them: python -m pipelines.canary serve"
    )


def _exit_code(found: dict[str, Any]) -> int:
    return _EXIT.get(found.get("action", ""), EXIT_INCONCLUSIVE)


if __name__ == "__main__":
    sys.exit(main())
