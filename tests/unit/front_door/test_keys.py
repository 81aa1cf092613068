"""Tests of API keys: how they are kept, found, withdrawn and limited."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    RateLimitError,
    ServerStartError,
    UnauthorizedError,
)
from pipelines.front_door.access.__main__ import main
from pipelines.front_door.access.clients import Client, KeyRing
from pipelines.front_door.access.key_file import ApiKey, add_key, digest_of, read_keys, remove_key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def request_with(authorization: str | None) -> web.Request:
    headers = {} if authorization is None else {"Authorization": authorization}
    return make_mocked_request("POST", "/v1/completions", headers=headers)


def test_a_key_is_kept_as_its_digest_in_a_private_file(file: Path) -> None:
    key = add_key(file, "alice", 8, None)
    assert key.startswith("dp-") and len(key) > 40
    assert key.removeprefix("dp-") not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    [kept] = read_keys(file)
    assert (kept.name, kept.max_requests, kept.max_tokens) == ("alice", 8, None)
    assert kept.has_digest(digest_of(key.encode())) and not kept.has_digest(digest_of(key[:-1].encode()))


def test_a_file_keeps_its_owner_and_mode_so_that_the_same_servers_read_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(file, "alice", None, None)
    file.chmod(0o640)
    given_to: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: given_to.append((user, group)))
    add_key(file, "bob", None, None)
    remove_key(file, "alice")
    assert file.stat().st_mode & 0o777 == 0o640
    assert given_to == [(os.getuid(), file.stat().st_gid)] * 2

    monkeypatch.setattr(os, "chown", Mock(side_effect=PermissionError))
    with pytest.raises(InvalidRequestError, match="belongs to another user"):
        remove_key(file, "bob")
    assert [key.name for key in read_keys(file)] == ["bob"]


def test_commands_at_the_same_time_lose_no_key(file: Path) -> None:
    names = [f"client {number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: add_key(file, name, None, None), names))
    assert sorted(key.name for key in read_keys(file)) == sorted(names)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {key}", "{key}", "Bearer ä"]
)
def test_a_request_without_a_valid_key_is_refused_without_telling_it(
    file: Path, authorization: str | None
) -> None:
    key = add_key(file, "alice", None, None)
    given = None if authorization is None else authorization.replace("{key}", key)
    with pytest.raises(UnauthorizedError) as refused:
        KeyRing(file).client(request_with(given))
    assert key not in str(refused.value) and "wrong" not in str(refused.value)


def test_keys_come_and_go_while_the_server_runs(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ring = KeyRing(file)
    assert "every request is refused" in caplog.text, "there is no file yet"
    with pytest.raises(UnauthorizedError):
        ring.client(request_with("Bearer anything"))
    keys = {name: add_key(file, name, None, None) for name in ("alice", "bob")}
    for name, key in keys.items():
        assert ring.client(request_with(f"Bearer {key}")).key.name == name
        assert ring.client(request_with(f"bearer  {key}")).key.name == name
    remove_key(file, "alice")
    with pytest.raises(UnauthorizedError):
        ring.client(request_with(f"Bearer {keys['alice']}"))


def test_a_damaged_file_leaves_the_keys_in_use(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = add_key(file, "alice", None, None)
    ring = KeyRing(file)
    file.write_text("{")
    assert ring.client(request_with(f"Bearer {key}")).key.name == "alice"
    assert "the earlier API keys stay in use" in caplog.text
    num_lines = len(caplog.records)
    ring.client(request_with(f"Bearer {key}"))
    assert len(caplog.records) == num_lines, "once for each change"
    assert key not in caplog.text


def test_limits_change_while_requests_run(file: Path) -> None:
    key = add_key(file, "alice", 2, None)
    ring = KeyRing(file)
    client = ring.client(request_with(f"Bearer {key}"))
    with client.request(), client.request():
        document = json.loads(file.read_text())
        document["keys"][0]["max_requests"] = 3
        file.write_text(json.dumps(document, indent=2))
        again = ring.client(request_with(f"Bearer {key}"))
        with again.request(), pytest.raises(RateLimitError), again.request():
            pass


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sha256": "abc"}, "sha256"),
        ({"name": ""}, "name"),
        ({"max_requests": 0}, "max_requests"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"tokens_per_minute": 3}, "tokens_per_minute"),
        (None, "'alice'"),
    ],
)
def test_a_wrong_entry_and_a_name_that_stands_twice_are_refused_at_start(
    file: Path, change: dict[str, object] | None, named: str
) -> None:
    add_key(file, "alice", None, None)
    document = json.loads(file.read_text())
    [entry] = document["keys"]
    document["keys"] = [entry, entry] if change is None else [{**entry, **change}]
    file.write_text(json.dumps(document))
    with pytest.raises(ServerStartError, match=named):
        KeyRing(file)


def test_no_other_key_can_name_a_clients_session() -> None:
    alice, alice_again = (Client(ApiKey("alice", digest * 64)) for digest in "01")
    anyone = Client(ApiKey("", ""))
    assert alice.session("s") == alice.session("s") != alice_again.session("s")
    assert "s" not in (alice.session("s"), alice_again.session("s"))
    assert alice.session("") == "" and anyone.session("s") == "s"
    for invalid in ("\udcff", "x" * 257):
        assert alice.session(invalid) == invalid


def test_a_key_with_a_cache_of_its_own_has_salts_of_its_own() -> None:
    alice, bob = (Client(ApiKey(name, name * 8), has_own_cache=True) for name in ("alice", "bob"))
    sharing, anyone = Client(ApiKey("alice", "alice" * 8)), Client(ApiKey("", ""), has_own_cache=True)
    assert (
        len({alice.cache_salt(""), alice.cache_salt("s"), bob.cache_salt(""), bob.cache_salt("s"), "s", ""})
        == 6
    )
    for shared in (sharing, anyone):
        assert (shared.cache_salt(""), shared.cache_salt("s")) == ("", "s")


def test_tokens_at_a_time_are_limited() -> None:
    client = Client(ApiKey("alice", "", max_tokens=100))
    with client.tokens(60):
        with pytest.raises(RateLimitError, match="100 at a time"), client.tokens(60):
            pass
        with client.tokens(40):
            pass
    with client.tokens(100):
        pass
    with pytest.raises(InvalidRequestError, match="too large"), client.tokens(101):
        pass


def test_the_command_adds_and_removes_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add", "alice", "--file", str(file), "--max-requests", "3"]) == 0
    key = capsys.readouterr().out.strip()
    assert KeyRing(file).client(request_with(f"Bearer {key}")).key.max_requests == 3
    assert main(["add", "tester", "--file", str(file), "--may-choose-arm"]) == 0
    assert [key.may_choose_arm for key in read_keys(file)] == [False, True]
    assert main(["add", "alice", "--file", str(file)]) == 1
    assert main(["remove", "bob", "--file", str(file)]) == 1
    assert main(["remove", "alice", "--file", str(file)]) == 0
    assert [key.name for key in read_keys(file)] == ["tester"]
    file.unlink()
    with pytest.raises(DraftproofError, match=r"keys\.json"):
        remove_key(file, "alice")
