"""Tests of where Triton listens and of its keys: for its user only, and new at each start."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pipelines.deploy.triton.place import TritonPlace, prefix_of, read_key, remove_shared_memory
from pipelines.errors import ServerStartError
from pipelines.socket_path import MAX_SOCKET_BYTES

SHARED_MEMORY = Path("/dev/shm")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_reads_the_key_and_reaches_the_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "triton").mkdir(mode=0o755)
    (tmp_path / "triton" / "grpc:1").touch()  # left by a Triton that was killed
    (tmp_path / "key").write_text("of the start before")
    (tmp_path / "key").chmod(0o644)
    monkeypatch.setattr("os.umask", lambda mask: mask)
    place = TritonPlace.make(tmp_path)
    assert mode(tmp_path / "key") == 0o600
    assert mode(tmp_path / "triton") == 0o700
    assert list((tmp_path / "triton").iterdir()) == []
    assert read_key(tmp_path) == place.server_key
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["key", "triton"], (
        "nothing half written stays"
    )


def test_the_key_differs_at_each_start(tmp_path: Path) -> None:
    assert read_key(tmp_path) == ""
    first, second = TritonPlace.make(tmp_path), TritonPlace.make(tmp_path)
    assert first.server_key != second.server_key and len(second.server_key) >= 43  # 256 bits
    assert read_key(tmp_path) == second.server_key
    assert first.shared_memory_prefix != second.shared_memory_prefix
    for place in (first, second):
        assert place.shared_memory_prefix.startswith(prefix_of(tmp_path))


def test_the_server_s_key_stands_on_no_command_line(tmp_path: Path) -> None:
    place = TritonPlace.make(tmp_path)
    options = place.options(exit_timeout_s=5)
    assert not any(place.server_key in option for option in options)
    assert place.variables()["DRAFTPROOF_KEY"] == place.server_key


def test_triton_listens_on_sockets_alone(tmp_path: Path) -> None:
    place = TritonPlace.make(tmp_path)
    options = dict(
        option.partition("=")[::2] for option in place.options(5) if "backend-config" not in option
    )
    assert options["--allow-http"] == "false"
    assert place.grpc == f"{options['--grpc-address']}:{options['--grpc-port']}"
    assert f"unix:{place.metrics}" == options["--metrics-address"]


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    rest = MAX_SOCKET_BYTES - len(f"{tmp_path}/") - len("/triton/metrics")
    fitting = tmp_path / ("é" * (rest // 2) + "x" * (rest % 2))  # counted in bytes
    fitting.mkdir()
    TritonPlace.make(fitting)
    long = fitting.with_name(fitting.name + "x")
    long.mkdir()
    with pytest.raises(ServerStartError, match="path of a socket has 108 bytes"):
        TritonPlace.make(long)
    assert list(long.iterdir()) == []


def test_shared_memory_is_closed_to_others_and_removed(tmp_path: Path) -> None:
    place = TritonPlace.make(tmp_path)
    ours = SHARED_MEMORY / f"{place.shared_memory_prefix}0_region"
    other = SHARED_MEMORY / f"{prefix_of(tmp_path)}other_region"
    try:
        for region in (ours, other):
            region.write_bytes(b"prompt")
            region.chmod(0o644)
        place.close_shared_memory()
        assert (mode(ours), mode(other)) == (0o600, 0o644)
        place.clear()
        assert not ours.exists() and other.exists()
        remove_shared_memory(prefix_of(tmp_path))
        assert not other.exists()
    finally:
        for region in (ours, other):
            region.unlink(missing_ok=True)
