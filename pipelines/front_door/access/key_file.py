"""The file of API keys. It holds their digests, so nobody who reads it can use them.

A key has 256 random bits, so one SHA-256 protects it; a slow hash is for passwords, which can be guessed.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt

from pipelines import configuration
from pipelines.atomic_file import whole_file
from pipelines.errors import InvalidRequestError, ServerStartError

_FORMAT = 1
_PREFIX = "dp-"
_KEY_BYTES = 32


@dataclass(frozen=True)
class ApiKey:
    """One key.

    Attributes:
        name: Who uses it.
        sha256: Its digest, hexadecimal.
        max_requests: Most requests at a time; None for no limit.
        max_tokens: Most tokens at a time, of prompts and longest answers; None for no limit.
        may_choose_arm: Whether its requests may name the arm that answers, whatever the weights of a rollout.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    max_requests: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    may_choose_arm: bool = False

    def has_digest(self, digest: str) -> bool:
        """Compare digests in a time that does not depend on where they differ."""
        return hmac.compare_digest(digest, self.sha256)


@configuration.strict
@dataclass(frozen=True)
class _Document:
    keys: tuple[ApiKey, ...]


def digest_of(key: bytes) -> str:
    """Return the digest of a key, hexadecimal."""
    return hashlib.sha256(key).hexdigest()


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file.

    Raises:
        ServerStartError: The file is missing or invalid, or has two keys of one name.
    """
    remedy = "make a key with 'draftproof api-key', or restore the file"
    keys = configuration.read_json(_Document, path, _FORMAT, ServerStartError, remedy).keys
    names = [key.name for key in keys]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ServerStartError(
            f"{path} has several keys of one name: {', '.join(map(repr, twice))}",
            "rename or remove all but one of each name",
        )
    return keys


def add_key(
    path: Path, name: str, max_requests: int | None, max_tokens: int | None, *, may_choose_arm: bool = False
) -> str:
    """Add a new key to a file, which is made if it is missing.

    Returns:
        The key. It is kept nowhere.

    Raises:
        InvalidRequestError: The file has a key of this name, or belongs to another user.
        ServerStartError: The file is invalid.
    """
    with _locked(path):
        keys = read_keys(path) if path.exists() else ()
        if any(each.name == name for each in keys):
            raise InvalidRequestError(
                f"{path} has a key of the name {name!r:.200}", "remove it first, or choose another name"
            )
        key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        added = ApiKey(name, digest_of(key.encode()), max_requests, max_tokens, may_choose_arm)
        _write(path, (*keys, added))
    return key


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a file.

    Raises:
        InvalidRequestError: The file has no key of this name, or belongs to another user.
        ServerStartError: The file is missing or invalid.
    """
    with _locked(path):
        keys = read_keys(path)
        kept = tuple(each for each in keys if each.name != name)
        if len(kept) == len(keys):
            names = ", ".join(each.name for each in keys) or "none"
            raise InvalidRequestError(
                f"{path} has no key of the name {name!r:.200}, but {names}", "choose one of them"
            )
        _write(path, kept)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one command at a time change the file; the lock is its folder's, since the file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, keys: tuple[ApiKey, ...]) -> None:
    document = {"format": _FORMAT, "keys": [asdict(key) for key in keys]}
    with whole_file(path) as made:
        made.touch(mode=0o600)
        made.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if path.exists():
            _give_to_readers_of(path, made)


def _give_to_readers_of(path: Path, made: Path) -> None:
    """Give a file the owner, group and mode of another one, so that the same servers can read it."""
    state = path.stat()
    try:
        os.chown(made, state.st_uid, state.st_gid)
    except PermissionError:
        raise InvalidRequestError(
            f"{path} belongs to another user, as whom servers read it: {state.st_uid}, group {state.st_gid}",
            "run the command as this user, or as root",
        ) from None
    made.chmod(state.st_mode & 0o777)
