"""A server under attack: its reply to each attack, and whether the server and its answers are unchanged."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.triton.supervision.guard import find_model_processes
from tests.attacks import Address, Attack, Reply
from tests.attacks.http import GENERATE
from tests.attacks.raw_http import generate_body, post


@dataclass(frozen=True)
class Way:
    """One way to a server: which odd requests it answers, and which never reach our code.

    Attributes:
        harmless: Attacks that get an answer: parameters of Triton without a meaning here, headers that
            nothing reads, calls that the client cancels.
        not_read: Attacks that aiohttp or gRPC refuse in their own words, as invalid HTTP or as too large.
    """

    harmless: frozenset[str]
    not_read: frozenset[str]


TO_THE_GATEWAY = Way(
    frozenset(
        {
            *("Accept-Encoding with a weight of 1e999", "parameter that Triton reserves"),
            *("sequence id of text", "100 pipelined requests", "configuration of a model"),
            *("chunks, one of them", "question with chunks", "HTTP/0.9", "upgrade to a WebSocket"),
        }
    ),
    frozenset(
        {
            *("length and chunks", "negative length and chunks", "length of 2 GiB and chunks", "two lengths"),
            *("length beyond INT32 and chunks", "length with a plus sign", "space before the colon"),
            *("chunk of 2^64 bytes", "header of 1 MB", "10,000 headers", "path of 1 MB", "no HTTP at all"),
            *("HTTP/2 without TLS", "slow header"),
        }
    ),
)
OVER_GRPC = Way(
    frozenset({"cancelled at random instants"}),
    frozenset({"100,000 inputs", "200,000 times the same output", "text of 64 MiB", "gzip bomb"}),
)
_HARMLESS_STATUS = {"200", "OK", "DEADLINE_EXCEEDED"}
_WORDS_OF_OTHERS = {"400", "408", "closed", "silent", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED"}


@dataclass
class Attacked:
    """A server and its state before an attack.

    Attributes:
        processes: The processes of its models, which die with Triton.
        answer: The answer to a request that always has the same one.
    """

    server: Server
    http: Address
    processes: frozenset[tuple[str, int]]
    answer: str

    @classmethod
    def unharmed(cls, server: Server, http: Address) -> Attacked:
        """Return the state of a server before it is attacked."""
        found = cls(server, http, _processes(server), _answer(http))
        assert {"speculative", "router"} <= {model for model, _ in found.processes}
        return found

    def withstands(self, attack: Attack, address: Address, way: Way) -> None:
        """Check that an attack is refused with one of our errors, and that the server is unchanged.

        An attack that it does not withstand fails its own test only: the next one finds a ready server.
        """
        try:
            self._check(attack, address, way)
        except AssertionError:
            self.server.wait_ready()
            self.processes = _processes(self.server)
            raise

    def is_unharmed(self) -> bool:
        """Whether the server has the same processes, and gives the same answer."""
        return _answer(self.http) == self.answer and _processes(self.server) == self.processes

    def _check(self, attack: Attack, address: Address, way: Way) -> None:
        reply = attack.send(address)
        if attack.name in way.harmless:
            assert set(reply.status.split()) <= _HARMLESS_STATUS, reply
        elif not is_typed(reply):
            assert attack.name in way.not_read, reply
            assert reply.status in _WORDS_OF_OTHERS, reply
        assert "Traceback" not in reply.text
        assert self.is_unharmed()


def is_typed(reply: Reply) -> bool:
    """Return whether a client got one of our errors: JSON with a status over HTTP, or gRPC's message."""
    if not reply.status.isdecimal():
        return "draftproof/" in reply.text and "draftproof/internal" not in reply.text
    if not 400 <= int(reply.status) < 500:
        return False
    try:
        return str(json.loads(reply.text)["error"]).startswith("draftproof/")
    except (ValueError, KeyError, TypeError):
        return False


def attacks(*groups: tuple[Attack, ...], long: tuple[str, ...] = ()) -> list[object]:
    """Return a test parameter for each attack; slow ones are marked `long`."""
    return [
        pytest.param(attack, id=attack.name, marks=pytest.mark.long if attack.name in long else ())
        for group in groups
        for attack in group
    ]


def _processes(server: Server) -> frozenset[tuple[str, int]]:
    found = find_model_processes(prefix_of(server.directory))
    return frozenset((model, process.pid) for model, process in found.items())


def _answer(http: Address) -> str:
    reply = post(http, GENERATE, generate_body(max_tokens=6))
    assert reply.status == "200", reply
    return str(json.loads(reply.text)["text_output"])
