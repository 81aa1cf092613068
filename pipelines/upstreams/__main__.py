"""Answer OpenAI's API with a fleet, or with two servers or fleets of which the new one is rolled out.

A fleet is several servers of one pair: what one leaves unfinished, another continues.

Runs until SIGTERM or Ctrl-C. ``draftproof canary status``, its orders, ``report`` and ``serve`` work on the
rollout with ``--recipe <name of the service>``. Exit codes: 0 no rollout, or passed; 1 failed or refused;
2 wrong usage; 3 inconclusive; 130 the rollout has not ended, and the same command resumes it.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.server import run_directory
from pipelines.front_door.serving import log_to_standard_output
from pipelines.program import run_program
from pipelines.upstreams.service import Service
from pipelines.upstreams.settings import UpstreamsSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="draftproof upstreams", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="YAML file with the servers")
    parser.add_argument("--port", type=int, default=9100, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--front-door", type=Path, help="YAML file with address, API keys, TLS and limits (default: loopback)"
    )
    parser.add_argument(
        "--again", action="store_true", help="roll a candidate out whose last rollout has ended"
    )
    options = parser.parse_args(arguments)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    log_to_standard_output()
    return run_program(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    settings = UpstreamsSettings.read(options.settings)
    front_door = FrontDoorSettings.read(options.front_door)
    folder = run_directory(settings.name)
    return Service(settings, options.settings, folder, front_door, again=options.again).run(options.port)


if __name__ == "__main__":
    sys.exit(main())
