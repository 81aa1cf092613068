"""Names the files of rollouts in a run directory, and shares two of them with its router."""

from __future__ import annotations

from pathlib import Path

from pipelines.router.arms import ArmTable, write_table
from pipelines.router.observation import Observation
from pipelines.router.observation_log import log_end, read_observations


def state_file(run_directory: Path) -> Path:
    """Return the path of the state file."""
    return run_directory / "canary.sqlite"


def arms_file(run_directory: Path) -> Path:
    """Return the path of the table of arms, which the router follows."""
    return run_directory / "arms.json"


def observations_file(run_directory: Path) -> Path:
    """Return the path of the log of observations, which the router writes."""
    return run_directory / "observations.sqlite"


class RouterFiles:
    """Steers the router of a run directory by its files, as a ``World`` must.

    Args:
        run_directory: Run directory of the router.
    """

    def __init__(self, run_directory: Path) -> None:
        self._run = run_directory

    def write(self, table: ArmTable) -> None:
        """Replace the table of arms on disk."""
        write_table(arms_file(self._run), table)

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        """Read the router's log."""
        return read_observations(observations_file(self._run), offset)

    def observations_end(self) -> int:
        """Return the current end of the router's log."""
        return log_end(observations_file(self._run))
