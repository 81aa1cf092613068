"""Answers ``POST /v1/responses``, without storing anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from pipelines.client.generation import Chunk
from pipelines.front_door.answering import answer
from pipelines.front_door.messages.message import Content, Part, Thought
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.response_document import ResponseDocument
from pipelines.front_door.messages.style import THINK_END
from pipelines.front_door.requests.message_request import message_request
from pipelines.front_door.requests.responses import ResponsesBody
from pipelines.front_door.router_calls import RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import TextLogProbs
from pipelines.wire.request import CompletionRequest


async def answer_response(
    request: web.Request, body: ResponsesBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    body.check()
    asked, new_reader = await message_request(body, model, "input")
    return await answer(request, router, [asked], _ResponseFormat(body, model, asked, new_reader()), body)


class _ResponseFormat:
    """Writes the answer to one request.

    Args:
        body: The request.
        model: The model.
        asked: The request to the model.
        reader: Reads the answer.
    """

    def __init__(
        self, body: ResponsesBody, model: ServedModel, asked: CompletionRequest, reader: MessageReader
    ) -> None:
        self._model = model
        self._asked = asked
        self._reader = reader
        self._log_probs = None if asked.num_log_probs is None else TextLogProbs(model)
        self._output_ids: list[int] = []
        self._has_begun = self._has_thoughts = False
        self._response = ResponseDocument(
            {
                "model": model.name,
                "system_fingerprint": model.fingerprint,
                "seed": asked.seed,
                "instructions": body.instructions,
                "max_output_tokens": body.max_output_tokens,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "top_logprobs": asked.num_log_probs or 0,
                "tools": [asdict(function) for function in body.tools],
                "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
                "parallel_tool_calls": body.parallel_tool_calls is not False,
                "reasoning": body.reasoning or {"effort": None, "summary": None},
                "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
                "metadata": body.metadata or {},
                "user": body.user,
            }
        )

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        for _ in self.events(0, answers[0]):
            pass
        return self._response.document

    def events(self, number: int, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Return the events for a chunk of the answer, the first with those that begin the response."""
        if not self._has_begun:
            self._has_begun = True
            yield from self._response.begin()
        self._output_ids += chunk.output_ids
        if self._log_probs is not None:
            self._log_probs.add(chunk)
        for part in self._reader.read(chunk.text):
            yield from self._add(part)
        if chunk.finish_reason:
            for part in self._reader.end():
                yield from self._add(part)
            if self._log_probs is not None and (rest := self._log_probs.rest()):
                yield from self._response.add(Content("", place=0), rest)
            if chunk.continued_elsewhere:
                self._response.document["continued_elsewhere"] = True
            yield from self._response.end(chunk.finish_reason, self._usage())

    def end(self) -> Iterable[dict[str, Any]]:
        """Return the events after all answers."""
        return ()

    def _add(self, part: Part) -> Iterator[dict[str, Any]]:
        self._has_thoughts |= isinstance(part, Thought)
        if self._log_probs is not None and isinstance(part, Content):
            return self._response.add(part, self._log_probs.take(part))
        return self._response.add(part)

    def _usage(self) -> dict[str, Any]:
        num_prompt, num_output = len(self._asked.prompt_ids), len(self._output_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._num_thought_tokens()},
            "total_tokens": num_prompt + num_output,
        }

    def _num_thought_tokens(self) -> int:
        """Return the number of tokens up to the end of the thoughts."""
        if not self._has_thoughts:
            return 0
        mark, end = THINK_END.encode(), b""
        for number, token_id in enumerate(self._output_ids, 1):
            end += self._model.bytes_of(token_id)
            if mark in end:
                return number
            end = end[-len(mark) :]
        return len(self._output_ids)
