"""Names the files of rollouts: in a run directory, or beside the file of a fleet."""

from __future__ import annotations

from pathlib import Path


def state_file(run_directory: Path) -> Path:
    """Return the path of the state file."""
    return run_directory / "canary.sqlite"


def fleet_state_file(fleet_file: Path) -> Path:
    """Return the path of the state file of a fleet's rollouts, which lies beside the file of the fleet."""
    return fleet_file.with_suffix(".sqlite")


def arms_file(run_directory: Path) -> Path:
    """Return the path of the table of arms, which the router follows."""
    return run_directory / "arms.json"


def observations_file(run_directory: Path) -> Path:
    """Return the path of the log of observations, which the router writes."""
    return run_directory / "observations.jsonl"
