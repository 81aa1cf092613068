"""A Hugging Face hub on loopback, stricter than the real one.

It speaks as much of the protocol as ``huggingface_hub`` needs: model info, the tree in pages, ``resolve``
with ETag, ``X-Repo-Commit`` and ``X-Error-Code``, and a redirect of large files to another host. That host
is stricter than a real one: an address is valid once, a token there is an error, and a request must name
the range that it wants.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.loopback_http import SilentHandler, served

HUB_HOST, STORE_HOST = "127.0.0.1", "127.0.0.2"
_PAGE = 3  # entries of a tree


@dataclass
class HubRepository:
    """A repository.

    Attributes:
        readers: Tokens that may read it; None: everybody may.
        is_gated: Whether others see it, but cannot read its files.
        sizes: Name -> size that the hub announces instead of the real one.
        revisions: Branch or tag -> the repository there, besides ``main``.
    """

    files: dict[str, bytes]
    readers: tuple[str, ...] | None = None
    is_gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    revisions: dict[str, HubRepository] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, **settings: Any) -> HubRepository:
        return cls({path.name: path.read_bytes() for path in directory.iterdir()}, **settings)

    @property
    def commit(self) -> str:
        names = sorted(self.files)
        return hashlib.sha1(b"".join(n.encode() + self.files[n] for n in names)).hexdigest()

    def size(self, name: str) -> int:
        return self.sizes.get(name, len(self.files[name]))


@dataclass(frozen=True)
class Asked:
    """A request that the hub has received."""

    method: str
    host: str
    path: str
    range: str | None
    token: str | None


class Hub:
    """The hub and the store of its large files.

    Attributes:
        breaks_after: Bytes after which the store closes the connection, for each of the next downloads.
        is_damaging: Whether the store sends other bytes than it has.
        num_added: Bytes that it sends beyond the end of a file.
        endless: Name of a small file of which it sends more and more; "" for none.
        compresses: Whether it sends small files in a form that was not asked for.
        is_down: Whether every request gets 503.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, HubRepository] = {}
        self.asked: list[Asked] = []
        self.breaks_after: list[int] = []
        self.is_damaging = False
        self.num_added = 0
        self.endless = ""
        self.compresses = False
        self.ignores_ranges = False
        self.is_down = False
        self.addresses: dict[str, bytes] = {}
        self.urls: dict[str, str] = {}

    def environment(self, home: Path, **others: str) -> dict[str, str]:
        """Return the environment of a program that uses this hub and a cache in ``home``."""
        return {"HF_ENDPOINT": self.urls[HUB_HOST], "HF_HOME": str(home), **others}

    def downloads(self) -> list[Asked]:
        """Return the requests for large files."""
        return [each for each in self.asked if each.host == STORE_HOST]


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".gguf"))


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    address: str

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        authorization = self.headers.get("Authorization")
        token = authorization.removeprefix("Bearer ") if authorization else None
        self.hub.asked.append(Asked(self.command, self.address, self.path, self.headers.get("Range"), token))
        path = urlsplit(self.path)
        if self.hub.is_down:
            return self._send(503)
        if self.address == STORE_HOST:
            return self._store(path.path, token)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path.path):
            return self._about(match[1], match[2], match[3], parse_qs(path.query), token)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path.path):
            return self._resolve(match[1], match[2], match[3], token)
        self._send(404, error="EntryNotFound")

    def _about(
        self, name: str, kind: str, revision: str, query: dict[str, list[str]], token: str | None
    ) -> None:
        repository = self._visible(name, revision, token)
        if repository is None:
            return
        if kind == "revision":
            siblings = [{"rfilename": each} for each in sorted(repository.files)]
            return self._send_json({"id": name, "sha": repository.commit, "siblings": siblings}, repository)
        begin = int(query.get("cursor", ["0"])[0])
        names = sorted(repository.files)
        headers = {}
        if begin + _PAGE < len(names):
            url = f"{self.hub.urls[HUB_HOST]}{urlsplit(self.path).path}?recursive=True&cursor={begin + _PAGE}"
            headers["Link"] = f'<{url}>; rel="next"'
        entries = [_entry(repository, each) for each in names[begin : begin + _PAGE]]
        self._send_json(entries, repository, headers)

    def _resolve(self, name: str, revision: str, file: str, token: str | None) -> None:
        repository = self._visible(name, revision, token)
        if repository is None:
            return
        commit = {"X-Repo-Commit": repository.commit}
        if repository.is_gated and (repository.readers is None or token not in repository.readers):
            return self._send(403 if token else 401, error="GatedRepo")
        if file not in repository.files:
            return self._send(404, commit, error="EntryNotFound")
        content = repository.files[file]
        if not is_large(file):
            etag = {"ETag": f'"{_git_hash(content)}"', **commit}
            if self.hub.compresses:
                return self._send(200, {**etag, "Content-Encoding": "gzip"}, gzip.compress(content))
            if self.hub.endless == file and self.command == "GET":
                return self._send_endlessly(etag)
            return self._send(200, etag, content)
        address = f"/{secrets.token_hex(8)}/{quote(file)}"
        self.hub.addresses[address] = content
        about = {
            "X-Linked-Size": str(repository.size(file)),
            "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Location": f"{self.hub.urls[STORE_HOST]}{address}",
        }
        self._send(302, {**about, **commit})

    def _visible(self, name: str, revision: str, token: str | None) -> HubRepository | None:
        """Return a repository; None if the request has been refused."""
        repository = self.hub.repositories.get(name)
        is_hidden = repository is not None and repository.readers is not None and not repository.is_gated
        if repository is None or (is_hidden and token not in (repository.readers or ())):
            self._send(404 if token else 401, error="RepoNotFound")
            return None
        found = {"main": repository, **repository.revisions}
        by_commit = {each.commit: each for each in found.values()}
        if revision not in found and revision not in by_commit:
            self._send(404, error="RevisionNotFound")
            return None
        return found.get(revision) or by_commit[revision]

    def _store(self, path: str, token: str | None) -> None:
        content = self.hub.addresses.pop(path, None)
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if content is None or token is not None or match is None:
            return self._send(400)  # the address has expired, or a token was sent where it does not belong
        begin = 0 if self.hub.ignores_ranges else int(match[1])
        rest = content[begin:]
        if self.hub.is_damaging:
            rest = bytes(len(rest))
        rest += bytes(self.hub.num_added)
        if self.hub.ignores_ranges:
            self.send_response(200)
        else:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.hub.breaks_after:
            self.wfile.write(rest[: self.hub.breaks_after.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def _send_endlessly(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with suppress(ConnectionError):
            while True:
                self.wfile.write(bytes(1 << 20))

    def _send_json(
        self, document: Any, repository: HubRepository, headers: dict[str, str] | None = None
    ) -> None:
        about = {"Content-Type": "application/json", "X-Repo-Commit": repository.commit}
        self._send(200, {**about, **(headers or {})}, json.dumps(document).encode())

    def _send(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", error: str | None = None
    ) -> None:
        self.send_whole(status, body, {**(headers or {}), **({"X-Error-Code": error} if error else {})})


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(repository: HubRepository, name: str) -> dict[str, Any]:
    content = repository.files[name]
    entry = {"type": "file", "path": name, "size": repository.size(name), "oid": _git_hash(content)}
    if is_large(name):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": repository.size(name), "pointerSize": 134}
    return entry


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub on free ports until the block ends."""
    hub = Hub()
    with ExitStack() as servers:
        for host in (HUB_HOST, STORE_HOST):
            hub.urls[host] = servers.enter_context(served(_Handler, host, hub=hub, address=host))
        yield hub
