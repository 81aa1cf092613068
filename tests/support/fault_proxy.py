"""An HTTP proxy in front of an OpenAI-compatible server that plants one fault in its answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from tests.support.loopback_http import SilentHandler, served

Body = dict[str, Any]
Ask = Callable[[Body], Body]
Fault = Callable[[Body, Ask], Body]
"""(request, function that asks the server) -> answer."""

FAULT_AT = 3  # output token


@dataclass(frozen=True)
class Sometimes:
    """A fault in a share of the prompts, always the same ones."""

    fault: Fault
    one_in: int

    def __call__(self, request: Body, ask: Ask) -> Body:
        """Answer with the fault, if it concerns the prompt."""
        digest = hashlib.sha256(json.dumps(request.get("prompt")).encode()).digest()
        return self.fault(request, ask) if digest[0] % self.one_in == 0 else ask(request)


def none(request: Body, ask: Ask) -> Body:
    """Plant nothing."""
    return ask(request)


def change_a_token(request: Body, ask: Ask) -> Body:
    """Replace a token by a rare one, in the ids and in the text."""
    answer = ask(request)
    for choice in answer["choices"]:
        ids = choice.get("token_ids")
        if ids and len(ids) > FAULT_AT:
            ids[FAULT_AT] = (ids[FAULT_AT] + 1000) % 2000
        if ids is None or len(ids) > FAULT_AT:
            choice["text"] = choice["text"][:-1] + "~"
    return answer


def drop_a_token(request: Body, ask: Ask) -> Body:
    """Leave a token out, in ids and text, and count it no more."""
    answer = ask(request)
    for choice in answer["choices"]:
        if choice.get("token_ids"):
            del choice["token_ids"][FAULT_AT : FAULT_AT + 1]
            answer["usage"]["completion_tokens"] = len(choice["token_ids"])
        choice["text"] = choice["text"][:-1]
    return answer


def ignore_the_temperature(request: Body, ask: Ask) -> Body:
    """Sample where the client asks for greedy answers."""
    return ask({**request, "temperature": 1.0})


def always_choose_the_best(request: Body, ask: Ask) -> Body:
    """Answer greedily where the client asks for a sample."""
    return ask({**request, "temperature": 0}) if request.get("temperature") else ask(request)


def let_the_draft_stand(request: Body, ask: Ask) -> Body:
    """Keep a token that the target would have rejected, and continue from there."""
    if not isinstance(request.get("prompt"), str):
        return ask(request)
    (first,) = ask({**request, "max_tokens": FAULT_AT})["choices"]
    prompt = request["prompt"] + first["text"]
    (second,) = ask({**request, "prompt": prompt, "max_tokens": 1, "logprobs": 2})["choices"]
    if first["finish_reason"] != "length" or not second["text"] or not second.get("logprobs"):
        return ask(request)
    drafted = min(_alternatives(second["logprobs"]).items(), key=lambda pair: pair[1])[0]
    rest = request["max_tokens"] - FAULT_AT - 1
    answer = ask({**request, "prompt": prompt + drafted, "max_tokens": rest})
    (choice,) = answer["choices"]
    choice["text"] = first["text"] + drafted + choice["text"]
    if choice.get("token_ids") is not None:
        choice["token_ids"] = (
            choice["prompt_token_ids"][len(first["prompt_token_ids"]) :] + choice["token_ids"]
        )
        choice["prompt_token_ids"] = first["prompt_token_ids"]
        answer["usage"]["completion_tokens"] = len(choice["token_ids"])
    return answer


def _alternatives(row: Body) -> dict[str, float]:
    """Return the likeliest first tokens, from either form of log probabilities."""
    if "content" in row:
        return {each["token"]: each["logprob"] for each in row["content"][0]["top_logprobs"]}
    return dict(row["top_logprobs"][0])


def lie_about_ids(request: Body, ask: Ask) -> Body:
    """Return ids that are not those of the text."""
    answer = ask(request)
    for choice in answer["choices"]:
        choice["text"] = choice["text"][:-1] + "~"
    return answer


def change_the_model(request: Body, ask: Ask) -> Body:
    """Let another model answer some of the prompts."""
    answer = ask(request)
    digest = hashlib.sha256(json.dumps(request.get("prompt")).encode()).digest()
    return {**answer, "model": "another"} if digest[0] % 4 == 0 else answer


class CutShort(Exception):
    """The proxy closes the connection before the end of the answer."""


class Garbage(Exception):
    """The proxy answers with something other than JSON."""


def cut(request: Body, ask: Ask) -> Body:
    """Cut the last bytes of the answer."""
    raise CutShort


def garble(request: Body, ask: Ask) -> Body:
    """Answer with a page of HTML."""
    raise Garbage


def ignore_stop_words(request: Body, ask: Ask) -> Body:
    """Let answers go on behind their stop words."""
    return ask({**request, "stop": None})


def ignore_the_schema(request: Body, ask: Ask) -> Body:
    """Answer with text where the client asks for JSON."""
    return ask({**request, "response_format": None})


def ignore_the_tools(request: Body, ask: Ask) -> Body:
    """Answer with text where the client asks for a call."""
    return ask({**request, "tools": None, "tool_choice": None, "parallel_tool_calls": None})


def change_the_arguments(request: Body, ask: Ask) -> Body:
    """Give calls arguments that are not JSON."""
    answer = ask(request)
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or ():
            call["function"]["arguments"] = call["function"]["arguments"][:-1]
    return answer


def forget_the_beginning(request: Body, ask: Ask) -> Body:
    """Answer only the end of long prompts."""
    prompt = request.get("prompt")
    return ask({**request, "prompt": prompt[-200:]} if isinstance(prompt, str) else request)


def cut_streams(request: Body, ask: Ask) -> Body:
    """Leave the last chunk with text out of streams, and nothing else."""
    return ask(request)


def cut_streams_of(content: bytes) -> bytes:
    """Return a stream whose last chunk with text has none."""
    events = content.split(b"\n\n")
    for place, event in reversed(list(enumerate(events))):
        data = event.removeprefix(b"data:").strip()
        chunk = json.loads(data) if data.startswith(b"{") else {}
        if any(choice.get("text") for choice in chunk.get("choices", ())):
            for choice in chunk["choices"]:
                choice["text"], choice["token_ids"] = "", []
            events[place] = b"data: " + json.dumps(chunk).encode()
            break
    return b"\n\n".join(events)


def cut_calls(request: Body, ask: Ask) -> Body:
    """Leave the last part of the arguments out of streamed calls, and nothing else."""
    return ask(request)


def cut_calls_of(content: bytes) -> bytes:
    """Return a stream without the last part of its calls."""
    events = content.split(b"\n\n")
    parts = [event for event in events if b'"tool_calls":[' in event.replace(b" ", b"")]
    return b"\n\n".join(event for event in events if event not in parts[-1:])


_OF_STREAMS: dict[Fault, Callable[[bytes], bytes]] = {cut_streams: cut_streams_of, cut_calls: cut_calls_of}


def _answer(fault: Fault, ask: Ask, request: Body) -> Body:
    return fault(request, ask)


@contextmanager
def fault_proxy(server: str, *planted: Fault, with_ids: bool = True, in_chat: bool = False) -> Iterator[str]:
    """Run a proxy in front of a server, with faults in answers to ``/v1/completions``.

    Args:
        server: Address of the server, without ``/v1``.
        planted: The faults. Requests of the probe, which have a ``max_tokens`` of 8 or less and no
            ``top_k``, are passed on.
        with_ids: Whether answers have token ids where the client asks for them.
        in_chat: Whether they are also in answers to ``/v1/chat/completions``.

    Yields:
        Address of the proxy.
    """
    paths = ["/v1/completions", *["/v1/chat/completions"] * in_chat]
    # Servers close connections that are idle for a while; a request on one of those would count as a fault.
    limits = httpx.Limits(max_keepalive_connections=0)
    http = httpx.Client(base_url=server, timeout=120, trust_env=False, limits=limits)

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            self._pass_on(http.get(self.path))

        def do_POST(self) -> None:
            request = json.loads(self.read_body())
            if not with_ids:
                request.pop("return_token_ids", None)
            is_probe = request.get("max_tokens", 0) <= 8 and not request.get("top_k")
            if self.path not in paths or is_probe or request.get("stream"):
                response = http.post(self.path, json=request)
                of_streams = [_OF_STREAMS[fault] for fault in planted if fault in _OF_STREAMS]
                is_faulty = self.path in paths and request.get("stream") and not is_probe and of_streams
                if is_faulty and response.status_code == httpx.codes.OK:
                    self._send(200, of_streams[0](response.content), None)
                else:
                    self._pass_on(response)
                return

            def ask(body: Body) -> Body:
                answered: Body = http.post(self.path, json=body).raise_for_status().json()
                return answered

            try:
                answering = ask
                for fault in planted:
                    answering = partial(_answer, fault, answering)
                content = json.dumps(answering(request)).encode()
                self._send(200, content, len(content))
            except CutShort:
                content = json.dumps(ask(request)).encode()
                self._send(200, content[:-20], len(content))
                self.close_connection = True
            except httpx.HTTPStatusError as refused:
                self._pass_on(refused.response)
            except Garbage:
                self._send(200, b"<html>busy</html>", 17)

        def _pass_on(self, response: httpx.Response) -> None:
            self._send(response.status_code, response.content, len(response.content))

        def _send(self, status: int, content: bytes, length: int | None) -> None:
            self.send_response(status)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

    with http, served(Handler) as url:
        yield url
