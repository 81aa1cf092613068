"""A client's request as it is passed on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.front_door.requests.body import check_num_values

RESPONSES = "/v1/responses"

_KEPT_BY_A_SERVER = ("previous_response_id", "conversation", "background")
_NOT_OF_THE_ANSWER = ("stream", "stream_options", "user", "metadata", "store")


@dataclass(frozen=True)
class ForwardedRequest:
    """A request for one answer.

    Attributes:
        path: Path with ``/v1``.
        content: Body as the client sent it.
        body: The same, parsed.
        session_id: Session, whose requests all go to one arm; "" for none.
        arm: Arm that the client chose; "" for none.
    """

    path: str
    content: bytes
    body: Mapping[str, Any]
    session_id: str = ""
    arm: str = ""

    @classmethod
    def of(cls, path: str, content: bytes, session_id: str, arm: str) -> ForwardedRequest:
        """Read a body.

        Raises:
            InvalidRequestError: It is not a JSON object, takes long to read, or needs what one server keeps.
        """
        check_num_values(content)
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise InvalidRequestError(
                f"the body of {len(content)} bytes is not a JSON object", "send a request of OpenAI's API"
            )
        kept = [name for name in _KEPT_BY_A_SERVER if path == RESPONSES and body.get(name)]
        if kept:
            raise InvalidRequestError(
                f"servers that take turns keep no responses in common: {kept[0]}",
                "send the whole conversation as input",
            )
        made = cls(path, content, body, session_id, arm)
        assert made.prompt_id  # computed here, which may be on another thread
        return made

    @property
    def has_items(self) -> bool:
        """Whether the answer is one of ``/v1/responses``."""
        return self.path == RESPONSES

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for events."""
        return self.body.get("stream") is True

    @property
    def should_repeat(self) -> bool:
        """Whether a server without rounding would give the same answer again."""
        return self._is_greedy or isinstance(self.body.get("seed"), int)

    @property
    def has_effects(self) -> bool:
        """Whether it does something besides giving an answer: a server keeps it, or uses tools itself."""
        store, tools = self.body.get("store"), self.body.get("tools")
        is_kept = self.has_items if store is None else bool(store)
        return is_kept or any(_is_hosted(tool) for tool in (tools if isinstance(tools, list) else ()))

    @cached_property
    def prompt_id(self) -> str:
        """Hash of everything that determines an answer."""
        left_out = (*_NOT_OF_THE_ANSWER, "seed") if self._is_greedy else _NOT_OF_THE_ANSWER
        asked = {name: value for name, value in self.body.items() if name not in left_out}
        text = self.path + json.dumps(asked, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def prompt(self) -> str:
        """Prompt or conversation as text."""
        prompt = next((self.body[name] for name in ("prompt", "messages", "input") if name in self.body), "")
        return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)

    def content_for(self, model: str) -> bytes:
        """Return the body that a server gets: as the client sent it, but for another name of the model."""
        return json.dumps({**self.body, "model": model}).encode() if model else self.content

    @property
    def _is_greedy(self) -> bool:
        return self.body.get("temperature") == 0


def _is_hosted(tool: Any) -> bool:
    return not (isinstance(tool, dict) and tool.get("type") in ("function", "custom"))
