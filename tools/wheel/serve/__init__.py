"""The server of Draftproof, laid out like a checkout; the command ``draftproof`` runs it.

Its packages are named ``build`` and ``pipelines``, too general for other programs. So they are not in
site-packages, and only the processes that start here find them.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run the command line; returns the exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from pipelines.__main__ import main as run

    return run()
