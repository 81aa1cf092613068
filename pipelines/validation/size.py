"""Read what a user chooses of the size of a proof: its time, prompts and tokens; these decide the rest."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from pipelines.command_line.options import whole_number

MOST_PROMPTS, MOST_TOKENS = 320, 128
"""Size of a proof that has time enough, unless more are asked for."""

_MINUTES, _QUICK_MINUTES = 30, 5


@dataclass(frozen=True)
class Size:
    """Size of a proof, as far as a user chooses it.

    Attributes:
        minutes: Time in which it ends; None for any.
        num_prompts: Number of different prompts, all of which are asked; None for what there is time for.
        max_tokens: Most output tokens of an answer; None for what there is time for.
        is_quick: Whether few prompts count as a proof.
    """

    minutes: int | None = None
    num_prompts: int | None = None
    max_tokens: int | None = None
    is_quick: bool = False

    @classmethod
    def of(cls, options: argparse.Namespace) -> Size:
        """Read the options; who chooses both prompts and tokens has any time, unless that is chosen too."""
        default = _QUICK_MINUTES if options.quick else _MINUTES
        is_fixed = bool(options.num_prompts and options.max_tokens) and not options.quick
        minutes = options.minutes or (None if is_fixed else default)
        return cls(minutes, options.num_prompts, options.max_tokens, options.quick)


def add_size_options(parser: argparse.ArgumentParser, least_prompts: int) -> None:
    """Add the options that ``Size.of`` reads."""
    parser.add_argument(
        "--minutes",
        type=whole_number(1),
        help=f"time once the server is ready, from which the rest follows (default: {_MINUTES})",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"take {_QUICK_MINUTES} minutes, and show less with them"
    )
    parser.add_argument(
        "--num-prompts",
        type=whole_number(least_prompts),
        help=f"different prompts (default: what there is time for, up to {MOST_PROMPTS})",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1),
        help=f"most tokens per answer (default: what there is time for, up to {MOST_TOKENS})",
    )
