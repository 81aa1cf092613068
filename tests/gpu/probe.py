"""One question to the machine or the server: ``python -m tests.gpu.probe NAME --recipe R [--url URL]``.

The last line of standard output is JSON: ``verdict``, ``finding`` (a sentence) and what was seen. Exit codes:
0 as it should be; 1 not so; 3 nothing could be shown.
"""

from __future__ import annotations

import argparse
import json
import sys

from pipelines.command_line.running_server import known_key
from pipelines.deploy.server import run_directory
from pipelines.program import EXIT_CODES, run_program
from tests.gpu.finding import Finding
from tests.gpu.machine_probes import MACHINE_PROBES
from tests.gpu.serving_probes import SERVING_PROBES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.probe", description=__doc__)
    parser.add_argument("name", choices=(*MACHINE_PROBES, *SERVING_PROBES))
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--url", help="server, for the probes that ask one")
    options = parser.parse_args(arguments)

    def work() -> int:
        if options.name in MACHINE_PROBES:
            return _show(MACHINE_PROBES[options.name](options.recipe))
        with known_key(run_directory(options.recipe)):
            return _show(SERVING_PROBES[options.name](options.recipe, options.url))

    return run_program(work, result={"verdict": "fail"})


def _show(found: Finding) -> int:
    print(json.dumps({"verdict": found.verdict, "finding": found.text, **found.seen}))
    return EXIT_CODES[found.verdict]


if __name__ == "__main__":
    sys.exit(main())
