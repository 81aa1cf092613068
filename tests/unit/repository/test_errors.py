"""Tests of errors as text between server and client."""

from __future__ import annotations

from itertools import product

import pytest

from pipelines.errors import DraftproofError, InvalidRequestError, ServerBusyError, from_wire

PARTS = (
    *("", "plain", "two; clauses", ";", "; ", ";; ", "a;;;"),
    *("line\nbreak", "draftproof/x: y", " padded ", "ü"),
)


def parts_of(error: DraftproofError | None) -> tuple[str, str, str, str]:
    assert error is not None
    return error.what, error.values, error.limit, error.remedy


@pytest.mark.parametrize("prefix", ["", "in ensemble 'generate', "])
def test_all_four_parts_come_back_exactly(prefix: str) -> None:
    for what, values, limit, remedy in product(PARTS, repeat=4):
        sent = ServerBusyError(what, values=values, limit=limit, remedy=remedy)
        received = from_wire(prefix + sent.to_wire())
        assert type(received) is ServerBusyError
        assert parts_of(received) == (what, values, limit, remedy)
        assert received.to_wire() == sent.to_wire()


@pytest.mark.parametrize("prefix", ["", "in ensemble 'generate', "])
def test_both_parts_come_back_exactly(prefix: str) -> None:
    for message, remedy in product(PARTS, repeat=2):
        sent = ServerBusyError(message, remedy)
        received = from_wire(prefix + sent.to_wire())
        assert type(received) is ServerBusyError
        assert (received.message, received.remedy) == (message, remedy)
        assert received.to_wire() == sent.to_wire() and str(received) == str(sent)


def test_people_read_the_same_text_as_before() -> None:
    error = InvalidRequestError("it does not fit", values="n=9", limit="8", remedy="lower n")
    assert error.to_wire() == "draftproof/invalid_request: it does not fit; n=9; 8; lower n"
    assert str(from_wire(error.to_wire())) == str(error) == "it does not fit; n=9; 8; lower n"
    assert error.message == "it does not fit; n=9; 8"
    assert InvalidRequestError("n=9 is above 8", "lower n").to_wire() == (
        "draftproof/invalid_request: n=9 is above 8; lower n"
    )


def test_a_long_value_is_cut_and_the_remedy_still_arrives() -> None:
    received = from_wire(InvalidRequestError("bad", values="x" * 10**6, limit="8", remedy="cut it").to_wire())
    assert received is not None and received.remedy == "cut it"
    assert received.values == "x" * 1000 + "..."
