"""Tests of calls to Triton that are opened before they are needed."""

from __future__ import annotations

import asyncio

import pytest

from pipelines.triton.gateway import spare_streams
from pipelines.triton.gateway.spare_streams import SpareStreams


class Call:
    def __init__(self) -> None:
        self.has_ended = False

    def done(self) -> bool:
        return self.has_ended

    def cancel(self) -> None:
        self.has_ended = True


def spare_streams_and_calls() -> tuple[list[Call], SpareStreams]:
    """Return the calls opened so far, and the object that opens them."""
    opened: list[Call] = []

    def open_stream() -> Call:
        opened.append(Call())
        return opened[-1]

    return opened, SpareStreams(open_stream)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_streams, "_REFILL_AFTER_S", 0.01)


def test_the_first_is_opened_and_those_after_it_are_there() -> None:
    async def scenario() -> None:
        opened, streams = spare_streams_and_calls()
        first = streams.take()
        assert opened == [first]
        await asyncio.sleep(0.05)
        num_opened = len(opened)
        assert num_opened > 1
        taken = {id(streams.take()) for _ in range(num_opened - 1)}
        assert len(opened) == num_opened and len(taken) == num_opened - 1, "each for one user"
        streams.take()
        assert len(opened) == num_opened + 1
        streams.close()

    asyncio.run(scenario())


def test_what_has_ended_with_triton_is_given_to_nobody() -> None:
    async def scenario() -> None:
        opened, streams = spare_streams_and_calls()
        streams.take()
        await asyncio.sleep(0.05)
        for call in opened:
            call.has_ended = True
        assert not streams.take().has_ended
        await asyncio.sleep(0.05)
        assert not streams.take().has_ended
        streams.close()

    asyncio.run(scenario())


def test_closing_cancels_what_nobody_took_and_nothing_else() -> None:
    async def scenario() -> None:
        opened, streams = spare_streams_and_calls()
        taken = streams.take()
        await asyncio.sleep(0.05)
        streams.close()
        assert not taken.has_ended and all(call.has_ended for call in opened[1:])
        num_opened = len(opened)
        streams.take()
        await asyncio.sleep(0.05)
        assert len(opened) == num_opened + 1, "none is opened in advance any more"

    asyncio.run(scenario())
