"""Sends one request to servers and passes their bytes on (the ``ArmClient`` of ``router.failover``).

Another server takes over as long as the client has nothing: until the first token of a stream, and until the
end of an answer in one piece. After that, what went wrong is recorded, and the client gets the same bytes as
from the server itself, to the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from pipelines.errors import TransportError
from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.open_requests import unix_time_s
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.upstream import Fault, Head, Upstream, head_of, name_of

_WHOLE = "application/json"


@dataclass(frozen=True)
class Piece:
    """A piece of a response.

    Attributes:
        head: Status and headers of the response.
        data: Bytes of its body.
        is_last: Whether it is the last one.
        is_cut: Whether the server broke the connection after it.
    """

    head: Head
    data: bytes
    is_last: bool = False
    is_cut: bool = False


class UpstreamCall:
    """One request, and the servers that may answer it.

    Attributes:
        outcomes: Outcomes of the arms that were asked.
        faults: What went wrong, by arm.
        answers: Answers of the arms that were asked, as far as they came.
        has_begun: Set once the client has a piece: then no other arm is asked.
        may_read: Whether pieces are read; not while the client takes none, which would be kept in memory.

    Args:
        request: The request.
        upstreams: Server of each arm.
        begin: Records that an arm is asked; the returned function is called once, with the outcome.
    """

    def __init__(
        self,
        request: ForwardedRequest,
        upstreams: Mapping[Arm, Upstream],
        begin: Callable[[Arm], Callable[[Outcome], None]],
    ) -> None:
        self.outcomes: dict[Arm, Outcome] = {}
        self.faults: dict[Arm, Fault] = {}
        self.answers: dict[Arm, Answer] = {}
        self.has_begun = False
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._request = request
        self._upstreams = upstreams
        self._begin = begin

    async def ask(self, arm: Arm) -> AsyncGenerator[Piece, None]:
        """Stream the response from its start.

        Raises:
            TransportError: The client has a part of another response.
            EngineFailedError: The server fails before anything was passed on.
            ServerBusyError: It is asked for too much.
            InvalidRequestError: It refuses the request.
        """
        if self.has_begun:
            raise TransportError(
                "an answer cannot be continued by another server",
                values=arm,
                limit="a server that answers from the start",
                remedy="send the request again",
            )
        request, upstream = self._request, self._upstreams[arm]
        content = request.content_for(upstream.endpoint.model)
        held, is_passing = b"", False
        answer: Answer | None = None
        try:
            async with upstream.send("POST", request.path, content) as response:
                head = head_of(response)
                if response.status != 200:
                    raise self._note(arm, await upstream.refusal(response))
                is_stream = request.is_stream and response.content_type != _WHOLE
                answer = self.answers[arm] = Answer(
                    is_stream=is_stream, clock=unix_time_s, has_items=request.has_items
                )
                async for data in response.content.iter_any():
                    await self.may_read.wait()
                    answer.read(data)
                    held += data
                    is_passing = is_passing or (is_stream and answer.has_token and not answer.fault)
                    if is_passing:
                        data, held = held, b""
                        yield Piece(head, data)
                    elif answer.fault:
                        break
                answer.end()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            name = name_of(error)
            if not is_passing or answer is None:
                raise self._note(arm, upstream.failure(name)) from None
            answer.cut(name)
            self._check(arm, answer)
            yield Piece(head, held, is_last=True, is_cut=True)
            return
        self._check(arm, answer)
        if answer.fault and not is_passing:
            raise self.faults[arm].error
        yield Piece(head, held, is_last=True)

    def resume(self, arm: Arm, output_ids: Sequence[int], last: Piece) -> AsyncGenerator[Piece, None]:
        """Refuse, as ``ask`` does: nothing tells where the bytes of one server end in another's."""
        return self.ask(arm)

    def begin(self, arm: Arm) -> Callable[[Outcome], None]:
        """Record that an arm is asked; an answer with a fault counts as a failure."""
        end = self._begin(arm)

        def note(outcome: Outcome) -> None:
            if outcome == "answered" and arm in self.faults:
                outcome = "error"
            self.outcomes[arm] = outcome
            end(outcome)

        return note

    def may_hedge(self, arm: Arm) -> bool:
        """Whether a silent server may be overtaken: only by a stream, and before its first token."""
        return self._request.is_stream and not self.has_begun

    def output_ids(self, chunk: Piece) -> Sequence[int]:
        """Return no tokens: pieces are bytes."""
        return ()

    def is_last(self, chunk: Piece) -> bool:
        """Whether a piece ends the response."""
        return chunk.is_last

    def without_first(self, chunk: Piece, num_tokens: int) -> Piece:
        """Return the piece, which has no tokens that could be left out."""
        return chunk

    def _check(self, arm: Arm, answer: Answer) -> None:
        upstream = self._upstreams[arm]
        name = answer.fault
        if not name and upstream.changes_model(str(self._request.body.get("model")), answer.model):
            name = "another model than before"
        if name:
            self._note(arm, upstream.failure(name))

    def _note(self, arm: Arm, fault: Fault) -> Exception:
        self.faults[arm] = fault
        return fault.error
