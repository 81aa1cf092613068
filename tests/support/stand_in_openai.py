"""A small OpenAI-compatible server whose faults a test chooses; it derives its answers from the prompts."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.loopback_http import SilentHandler, served


@dataclass
class Faults:
    """Shares of the prompts, 0 to 1, that a fault concerns; a hash of the prompt decides, not the order.

    Attributes:
        changes: Another answer than other servers give.
        wavers: Another answer each time.
        fails: HTTP 500.
        limits: HTTP 429.
        cuts: The connection breaks in the middle of a stream.
        ends: A stream ends without ``[DONE]``.
        garbles: Something else than JSON.
        renames: The model changes from answer to answer.
        delay_s: Time before each token.
        hangs: No answer for ``hang_s``; ``StandIn.is_hanging`` is set meanwhile.
    """

    changes: float = 0.0
    wavers: float = 0.0
    fails: float = 0.0
    limits: float = 0.0
    cuts: float = 0.0
    ends: float = 0.0
    garbles: float = 0.0
    renames: float = 0.0
    delay_s: float = 0.0
    hangs: float = 0.0
    hang_s: float = 60.0

    def concerns(self, name: str, prompt: str) -> bool:
        digest = hashlib.blake2b(f"{name} {prompt}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") / (1 << 32) < getattr(self, name)


@dataclass
class StandIn:
    """A running server.

    Attributes:
        url: Address.
        faults: What it does wrong; may be changed while it runs.
        key: The API key that it requires; "" for none.
        model: Name of its model.
        metrics: What it publishes at ``/metrics``; "" if it has none.
        has_responses: Whether it has ``/v1/responses``.
        speculation: ``speculative_config`` as TensorRT-LLM's PyTorch backend is started with it: without
            ``enable_penalty`` penalties are ignored, and requests without a seed share a stream of random
            numbers. None for a server without a draft, which does neither.
        knows: Fields of requests; it refuses others, as ``trtllm-serve`` does. All if empty.
        lists_models: Whether it has a list of its models, or fails when it is asked for one.
        requests: Bodies of the requests for answers that came.
        headers: Headers of the same requests.
        says: Headers of its answers in one piece, beside those that it needs.
    """

    url: str = ""
    faults: Faults = field(default_factory=Faults)
    key: str = ""
    model: str = "stand-in"
    metrics: str = ""
    lists_models: bool = True
    has_responses: bool = True
    speculation: Mapping[str, Any] | None = None
    knows: Collection[str] = ()
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    says: Mapping[str, str] = field(default_factory=dict)
    is_hanging: threading.Event = field(default_factory=threading.Event)

    @property
    def prompts(self) -> list[Any]:
        return [_prompt_of(body) for body in self.requests]


@contextmanager
def stand_in_openai(faults: Faults | None = None, **settings: Any) -> Iterator[StandIn]:
    """Run a server during the block."""
    stand_in = StandIn(faults=faults or Faults(), **settings)
    closing = threading.Event()
    with served(_Handler, served=stand_in, is_closing=closing) as stand_in.url:
        try:
            yield stand_in
        finally:
            closing.set()


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    served: StandIn
    is_closing: threading.Event

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has left
            super().handle()

    def do_GET(self) -> None:
        if self.path == "/v1/models" and not self.served.lists_models:
            self._send(500, {"detail": "no cache"})
        elif self.path == "/metrics" and self.served.metrics:
            self.send_whole(200, self.served.metrics.encode(), {"Content-Type": "text/plain"})
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": self.served.model, "owned_by": "tests"}]})
        else:
            self._send(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        body = json.loads(self.read_body())
        served = self.served
        served.requests.append(body)
        served.headers.append(dict(self.headers))
        prompt = str(_prompt_of(body))
        if served.key and self.headers.get("Authorization") != f"Bearer {served.key}":
            self._send(401, {"error": {"message": f"wrong key: {self.headers.get('Authorization')}"}})
        elif self._is_response and not served.has_responses:
            self._send(404, {"detail": "Not Found"})
        elif served.knows and not body.keys() <= set(served.knows):
            self._send(400, {"error": {"message": f"unknown: {sorted(body.keys() - set(served.knows))}"}})
        elif body.get("max_tokens", 1) < 1:
            self._send(400, {"error": {"message": "max_tokens must be at least 1", "input": prompt}})
        elif served.faults.concerns("hangs", prompt):
            served.is_hanging.set()
            self.is_closing.wait(served.faults.hang_s)
        elif served.faults.concerns("fails", prompt):
            self._send(500, {"error": {"message": "broken"}})
        elif served.faults.concerns("limits", prompt):
            self._send(429, {"error": {"message": "too many requests"}}, {"Retry-After": "0"})
        elif served.faults.concerns("garbles", prompt):
            self.send_whole(200, b"<html>not what you asked for</html>", {"Content-Type": "text/html"})
        elif body.get("stream"):
            self._stream(body, prompt)
        else:
            self._whole(body, prompt)

    def _tokens(self, body: dict[str, Any], prompt: str) -> list[str]:
        faults, salt = self.served.faults, ""
        if faults.concerns("changes", prompt):
            salt = self.served.url
        speculation, is_free = self.served.speculation, body.get("temperature", 1) and "seed" not in body
        if speculation is None or speculation.get("enable_penalty"):
            salt += "".join(str(body.get(name) or "") for name in ("frequency_penalty", "presence_penalty"))
        if faults.concerns("wavers", prompt) or (is_free and speculation is None):
            salt += str(time.monotonic_ns())
        digest = hashlib.blake2b(f"{salt}{body.get('seed')}{prompt}".encode(), digest_size=16).hexdigest()
        return [
            f" {digest[place : place + 3]}"
            for place in range(min(8, body.get("max_tokens", body.get("max_output_tokens", 8))))
        ]

    def _frame(self, body: dict[str, Any], prompt: str, text: str, end: str | None) -> dict[str, Any]:
        is_chat = "chat" in self.path
        name = "delta" if body.get("stream") else "message"
        choice: dict[str, Any] = {"index": 0, "finish_reason": end, "logprobs": None}
        choice |= {name: {"role": "assistant", "content": text}} if is_chat else {"text": text}
        model = self._model(prompt)
        return {"id": "a", "object": "answer", "created": 1, "model": model, "choices": [choice]}

    @property
    def _is_response(self) -> bool:
        return self.path == "/v1/responses"

    def _model(self, prompt: str) -> str:
        served = self.served
        renamed = served.faults.concerns("renames", prompt)
        return f"{served.model}-{len(served.requests)}" if renamed else served.model

    def _response(self, prompt: str, tokens: list[str], status: str) -> dict[str, Any]:
        """Return a response of ``/v1/responses``, whose ids are never the same twice."""
        content = {"type": "output_text", "text": "".join(tokens), "annotations": [], "logprobs": []}
        item = {"id": f"msg_{time.monotonic_ns()}", "type": "message", "role": "assistant", "status": status}
        usage = {
            "input_tokens": 1,
            "output_tokens": len(tokens),
            "total_tokens": 1 + len(tokens),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return {
            "id": f"resp_{time.monotonic_ns()}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": self._model(prompt),
            "output": [{**item, "content": [content]}] if tokens else [],
            "usage": usage if tokens else None,
            **{"error": None, "incomplete_details": None, "instructions": None, "metadata": {}},
            **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": []},
        }

    def _response_events(self, prompt: str, tokens: list[str]) -> Iterator[dict[str, Any]]:
        """Yield an event for the beginning, for each token and for the end."""
        yield {"type": "response.created", "response": self._response(prompt, [], "in_progress")}
        for token in tokens:
            place = {"item_id": "msg", "output_index": 0, "content_index": 0}
            yield {"type": "response.output_text.delta", **place, "delta": token, "logprobs": []}
        yield {"type": "response.completed", "response": self._response(prompt, tokens, "completed")}

    def _whole(self, body: dict[str, Any], prompt: str) -> None:
        tokens = self._tokens(body, prompt)
        time.sleep(self.served.faults.delay_s * len(tokens))
        if self._is_response:
            self._send(200, self._response(prompt, tokens, "completed"))
            return
        document = self._frame(body, prompt, "".join(tokens), "length")
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 1 + len(tokens)}
        self._send(200, {**document, "usage": usage})

    def _stream(self, body: dict[str, Any], prompt: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = self._tokens(body, prompt)
        if self._is_response:
            self._stream_response(prompt, tokens)
            return
        for number, token in enumerate(tokens):
            time.sleep(self.served.faults.delay_s)
            if number == 4 and self.served.faults.concerns("cuts", prompt):
                self.wfile.flush()
                self.close_connection = True
                return
            end = "length" if number == len(tokens) - 1 else None
            self._event(json.dumps(self._frame(body, prompt, token, end)))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 1, "completion_tokens": len(tokens), "total_tokens": 9}
            self._event(json.dumps({**self._frame(body, prompt, "", None), "choices": [], "usage": usage}))
        if not self.served.faults.concerns("ends", prompt):
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _stream_response(self, prompt: str, tokens: list[str]) -> None:
        faults = self.served.faults
        for number, event in enumerate(self._response_events(prompt, tokens)):
            time.sleep(faults.delay_s)
            if number == 5 and faults.concerns("cuts", prompt):
                self.wfile.flush()
                self.close_connection = True
                return
            if event["type"] != "response.completed" or not faults.concerns("ends", prompt):
                self._event(json.dumps({**event, "sequence_number": number}), event["type"])
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str, kind: str = "") -> None:
        content = f"event: {kind}\n".encode() if kind else b""
        content += f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json"}
        self.send_whole(
            status, json.dumps(document).encode(), {**kind, **self.served.says, **(headers or {})}
        )


def _prompt_of(body: dict[str, Any]) -> Any:
    given = next(body[name] for name in ("prompt", "messages", "input") if name in body)
    return given[-1]["content"] if isinstance(given, list) and isinstance(given[-1], dict) else given
