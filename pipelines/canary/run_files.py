"""Names the files of rollouts in a run directory."""

from __future__ import annotations

from pathlib import Path


def state_file(run_directory: Path) -> Path:
    """Return the path of the state file."""
    return run_directory / "canary.sqlite"


def arms_file(run_directory: Path) -> Path:
    """Return the path of the table of arms, which the router follows."""
    return run_directory / "arms.json"


def observations_file(run_directory: Path) -> Path:
    """Return the path of the log of observations, which the router writes."""
    return run_directory / "observations.jsonl"
