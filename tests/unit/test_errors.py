"""Tests of errors as text between server and client."""

from __future__ import annotations

from itertools import product

import pytest

from pipelines.errors import InvalidRequestError, ServerBusyError, from_wire

PARTS = (
    *("", "plain", "two; clauses", ";", "; ", ";; ", "a;;;"),
    *("line\nbreak", "draftproof/x: y", " padded ", "ü"),
)


@pytest.mark.parametrize("prefix", ["", "in ensemble 'generate', "])
def test_both_parts_come_back_exactly(prefix: str) -> None:
    for message, remedy in product(PARTS, repeat=2):
        sent = ServerBusyError(message, remedy)
        received = from_wire(prefix + sent.to_wire())
        assert type(received) is ServerBusyError
        assert (received.message, received.remedy) == (message, remedy)
        assert received.to_wire() == sent.to_wire() and str(received) == str(sent)


def test_people_read_the_two_parts() -> None:
    error = InvalidRequestError("n=9 is above 8", "lower n")
    assert error.to_wire() == "draftproof/invalid_request: n=9 is above 8; lower n"
    assert str(from_wire(error.to_wire())) == str(error) == "n=9 is above 8; lower n"


def test_a_long_value_is_cut_and_the_remedy_still_arrives() -> None:
    received = from_wire(InvalidRequestError("x" * 10**6, "cut it").to_wire())
    assert received is not None and received.remedy == "cut it"
    assert received.message == "x" * 1000 + "..."
