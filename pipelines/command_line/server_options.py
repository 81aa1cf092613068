"""Share the options of programs that ask a running server or start one."""

from __future__ import annotations

import argparse

from pipelines.command_line.given_prompts import add_prompts_option


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the server and the prompts."""
    parser.add_argument(
        "--url",
        default="",
        help="address of a running server, grpc://host:port or http://host:port (default: start one)",
    )
    parser.add_argument("--recipe", default="demo", help="recipe of the server to start (%(default)s)")
    add_prompts_option(parser)
