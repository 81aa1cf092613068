"""Drills with damaged files: settings of a running server, engines of one that starts."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from tests.drills.asking import asking
from tests.drills.outcome import Drill, Outcome
from tests.drills.place import Place
from tests.support.damaged_engines import cut_in_half, flip_a_bit

_SHOWN_FOR_S = 0.3
_REFUSED_WITHIN_S = 60.0

_CONTENTS = (
    *(b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b"\0" * 1_000_000),
    b'{"num_draft_tokens": -1, "generation": -1}',
    b'{"num_draft_tokens": 1e999, "generation": 1e999}',
    b'{"num_draft_tokens": 3, "num_draft_tokens": {}, "generation": "1"}',
)


def _settings(place: Place) -> Outcome:
    """Damage the table of arms and the draft length while clients ask."""
    place.server()
    before = place.pids()
    seen = Outcome()
    states = 0
    with asking(place, ("generate", "router"), 4, seen.tally):
        for name in ("arms.json", "draft_length.json"):
            path = place.directory / name
            for content in _CONTENTS:
                path.write_bytes(content)
                time.sleep(_SHOWN_FOR_S)
            path.unlink()
            path.mkdir()
            time.sleep(_SHOWN_FOR_S)
            path.rmdir()
            path.symlink_to(path)
            time.sleep(_SHOWN_FOR_S)
            path.unlink()
            states += len(_CONTENTS) + 2
    seen.figures["states"] = states
    if place.pids() != before:
        seen.faults.append("a process was replaced")
    return seen


def _engines(place: Place) -> Outcome:
    """Start servers on engines that were damaged after their repository was rendered; none may come up."""
    seen = Outcome()
    damages: tuple[tuple[str, Callable[[Path], None]], ...] = (
        ("flipped_bit", flip_a_bit),
        ("cut_in_half", cut_in_half),
    )
    for name, damage in damages:
        with tempfile.TemporaryDirectory(prefix="engines-", dir=place.directory.parent) as made:
            folder = Path(made)
            draft, target = place.copy_engines(folder)
            directory = place.render(draft, target, folder)
            damage(target / "engine.bin")
            began_s = time.monotonic()
            with Server.start(directory, Ports.free()) as server:
                try:
                    server.wait_ready(_REFUSED_WITHIN_S)
                    seen.faults.append(f"a server started on an engine with {name}")
                except ServerStartError as error:
                    if "engine.bin" not in str(error):
                        seen.faults.append(f"{name}: the refusal does not name the file: {error}")
            seen.figures[f"{name}_refused_s"] = time.monotonic() - began_s
            shutil.rmtree(directory)
    return seen


FILES = (
    Drill("damaged arms.json and draft_length.json", _settings),
    Drill("a start on damaged engines", _engines),
)
