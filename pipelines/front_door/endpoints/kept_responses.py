"""Keeps responses for an hour, for requests that continue them: ``/v1/responses/{response_id}``.

They are in the memory of this process, so no other server knows them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from aiohttp import web
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from pipelines.errors import InvalidRequestError, ResponseNotFoundError
from pipelines.front_door.access.clients import CLIENT
from pipelines.front_door.answering import json_response

KEPT_S = 3600.0


@dataclass(frozen=True)
class _Kept:
    response: bytes
    items: bytes  # of the conversation before the response
    until_s: float

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.items)


class KeptResponses:
    """The latest responses of each API key, the oldest first. Used on several threads.

    Attributes:
        max_bytes: Most bytes of all responses and their conversations, as JSON; 0 if none is kept.

    Args:
        max_bytes: As above; one API key may have a quarter of them.
        now: A clock, seconds.
    """

    def __init__(self, max_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes, self._max_bytes_of_key = max_bytes, max_bytes // 4
        self._now = now
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._num_bytes: Counter[str] = Counter()
        self._lock = Lock()

    def keep(self, owner: str, response: Mapping[str, Any], items: bytes) -> None:
        """Keep a response; what exceeds the limits is forgotten, the oldest first.

        Args:
            owner: Digest of the API key that may ask for it.
            response: The response.
            items: The items of the conversation before it, as JSON.
        """
        kept = _Kept(to_json(response), items, self._now() + KEPT_S)
        with self._lock:
            self._kept[owner, response["id"]] = kept
            self._num_bytes[owner] += kept.num_bytes
            while self._num_bytes[owner] > self._max_bytes_of_key:
                self._drop(next(place for place in self._kept if place[0] == owner))
            while self._num_bytes.total() > self.max_bytes:
                self._drop(next(iter(self._kept)))

    def drop_old(self) -> None:
        """Forget responses whose time is over."""
        with self._lock:
            while self._kept and next(iter(self._kept.values())).until_s <= self._now():
                self._drop(next(iter(self._kept)))

    def conversation(self, owner: str, response_id: str) -> list[JsonValue]:
        """Return the items of a conversation, with those of the response at its end.

        Raises:
            ResponseNotFoundError: The response is not kept, or not for this API key.
        """
        kept = self._find(owner, response_id, "previous_response_id")
        return [*from_json(kept.items), *from_json(kept.response)["output"]]

    async def show(self, request: web.Request) -> web.Response:
        """Answer ``GET``.

        Raises:
            InvalidRequestError: It asks for events, or the response is not kept.
        """
        if request.query.get("stream", "false") != "false":
            raise InvalidRequestError(
                f"stream={request.query['stream']!r:.200} is not false", "send false, or leave it out"
            )
        return web.Response(body=self._asked(request).response, content_type="application/json")

    async def delete(self, request: web.Request) -> web.Response:
        """Answer ``DELETE``.

        Raises:
            ResponseNotFoundError: The response is not kept.
        """
        self._asked(request)
        response_id = request.match_info["response_id"]
        with self._lock:
            self._drop((request[CLIENT].key.sha256, response_id))
        return json_response({"id": response_id, "object": "response", "deleted": True})

    def _asked(self, request: web.Request) -> _Kept:
        return self._find(request[CLIENT].key.sha256, request.match_info["response_id"], "response_id")

    def _find(self, owner: str, response_id: str, field: str) -> _Kept:
        self.drop_old()
        with self._lock:
            if (kept := self._kept.get((owner, response_id))) is not None:
                return kept
        raise ResponseNotFoundError(
            f"{field}={response_id!r:.200} is not kept: it is of another server or API key, had store=false, "
            f"or is older than an hour or than the latest {self._max_bytes_of_key / (1 << 20):g} MiB",
            "send the items of the conversation in input",
        )

    def _drop(self, place: tuple[str, str]) -> None:
        if (kept := self._kept.pop(place, None)) is not None:
            self._num_bytes[place[0]] -= kept.num_bytes


KEPT: web.AppKey[KeptResponses] = web.AppKey("kept", KeptResponses)
"""The responses that a front door keeps."""
