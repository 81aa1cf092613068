"""Sets aside what an earlier version wrote about rollouts."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from pathlib import Path

from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.state import APPLICATION, BUSY_S, VERSION

_LOG = logging.getLogger(__name__)


def set_aside(path: Path) -> None:
    """Rename a state file that an earlier version wrote, so that a new rollout can begin.

    That version can still read its rollouts. A file whose latest rollout has not ended stays in place, and
    ``Store`` refuses it: only the version that wrote it can continue that rollout.

    Args:
        path: State file, which need not exist. The caller holds its lock.
    """
    if not path.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            (application,), (version,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
            )
            if application != APPLICATION or version >= VERSION:
                return
            latest = connection.execute(
                "SELECT progress FROM rollout ORDER BY number DESC LIMIT 1"
            ).fetchone()
        if latest is not None and json.loads(latest[0])["position"]["phase"] not in ENDED:
            return
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        return  # ``Store`` raises the error
    kept = path.with_name(f"{path.stem}-{version}{path.suffix}")
    path.replace(kept)
    _LOG.warning("moved the rollouts of an earlier version to %s", kept)
