"""Tests of where Triton listens, of its keys, and of what servers publish about their answers."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from build.repository import render_recipe
from pipelines.deploy import identity
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.triton.place import TritonPlace, prefix_of, read_key, remove_shared_memory
from pipelines.errors import RepositoryError, ServerStartError
from pipelines.manifest import EngineFiles, engine_digest
from pipelines.socket_path import MAX_SOCKET_BYTES
from tests.integration.conftest import tiny_recipe
from tests.support.tiny_engines import build_tiny_pair

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


IDENTITY = ServerIdentity("demo", "0" * 64, "embedded", "a processor", 2)


def test_a_server_is_known_by_target_and_machine(tmp_path: Path) -> None:
    draft, target = build_tiny_pair(tmp_path / "engines", draft="noisy")
    directory = render_recipe(tiny_recipe("tiny"), draft, target, tmp_path / "run").parent
    found = ServerIdentity.read(directory)
    assert (found.pair, found.runtime) == ("tiny", "embedded")
    assert found.target_digest == engine_digest(EngineFiles(target).manifest)
    wanted = json.loads((target / "engine.json").read_text())["num_threads"]
    assert 1 <= found.num_threads <= wanted
    assert found == ServerIdentity.read(directory) and found.answers_as(found)


def test_instructions_that_a_virtual_machine_hides_make_another_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(identity, "_CPU_INFO", info)
    told = []
    for flags in ("avx2 avx512f amx_int8", "avx2 avx512f", "avx2 avx512f"):
        info.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
        told.append(identity.processor_type())
    assert told[0] != told[1] == told[2]
    assert all(each.startswith("Some CPU ") for each in told)


def test_it_survives_the_way_to_a_client() -> None:
    assert ServerIdentity.of_extensions(["a", IDENTITY.extension, "b"]) == IDENTITY
    assert ServerIdentity.of_extensions(["a", "b"]) is None
    with pytest.raises(RepositoryError):
        ServerIdentity.of_extensions(["draftproof {}"])


def test_servers_answer_alike_only_if_everything_is_equal_and_computed_here() -> None:
    assert IDENTITY.answers_as(replace(IDENTITY))
    for other in (
        replace(IDENTITY, target_digest="1" * 64),
        replace(IDENTITY, processor="another"),
        replace(IDENTITY, num_threads=3),
    ):
        assert not IDENTITY.answers_as(other)
    theirs = replace(IDENTITY, runtime="tensorrt_llm")
    assert not theirs.answers_as(theirs), "it promises no equal bits"
