"""Ask an OpenAI-compatible server the questions of a comparison."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.openai.server.abilities import (
    CHAT,
    COMPLETIONS,
    STREAM_USAGE,
    draft_tokens,
    find_abilities,
)
from pipelines.validation.openai.server.answers import Answer, answer_of, change_of_server
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.stopping import StoppedError, stoppable

_PROBE_SILENCE_S = 60.0


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        prompt: A text to continue or a conversation to answer; its id names the question in reports.
        max_tokens: Most tokens of the answer.
        kind: Name of its kind (``kinds``).
        fields: Further fields of the request.
        log_probs: Who is asked for log probabilities with it: the control, for margins, both or none.
        greedy: Greedy answer of the control to the prompt of a sampled one.
    """

    prompt: Prompt
    max_tokens: int
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    log_probs: Literal["control", "both", "none"] = "control"
    greedy: str = ""


class OpenAIServer:
    """An OpenAI-compatible server, for any number of threads.

    Args:
        endpoint: Where it is.
        timeout_s: Longest wait for the next bytes of an answer.

    Raises:
        DraftproofError: It does not answer, or has no model to ask.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._connection = Connection(endpoint, min(timeout_s, _PROBE_SILENCE_S))
        self._body = dict(endpoint.body)
        self._key = bool(endpoint.key)
        self.url = endpoint.url
        self._served_by = ("", "")
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()
        """Kinds of failed requests -> how many there were."""
        self.slowest_s = 0.0
        """Longest time that an answer took."""
        self.abilities = stoppable(find_abilities)(endpoint, self._connection, self._count)
        self.limit_silence(timeout_s)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def limit_silence(self, timeout_s: float) -> None:
        """Change the longest wait for the next bytes of an answer."""
        self._connection.timeout_s = timeout_s

    @property
    def num_retries(self) -> int:
        """Number of requests that were sent again because the server was busy."""
        return self._connection.num_retries

    @property
    def description(self) -> str:
        """Describe engine, model and fingerprint, as far as the server names them."""
        return " ".join(filter(None, (self.abilities.engine, *self._served_by)))

    def draft_tokens(self) -> int | None:
        """Return how many tokens it has drafted since its start; None if its metrics do not say."""
        return draft_tokens(self._connection)

    def ask(
        self, question: Question, *, stream: bool = False, log_probs: bool = False, named_ids: bool = True
    ) -> Answer:
        """Ask a question, greedily unless its fields say otherwise; a failure is counted.

        Args:
            question: What to ask.
            stream: Whether the answer arrives in events.
            log_probs: Whether it has the log probabilities of the likeliest tokens, if the server tells them.
            named_ids: Whether these are named by their ids, if the server can.

        Raises:
            DraftproofError: There is no answer, or it contradicts itself or earlier ones.
        """
        path, fields = self._request_of(question, stream, log_probs, named_ids)
        return self.request(path, fields, num_choices=_num_choices(question))

    def try_out(self, question: Question, *, log_probs: bool, named_ids: bool = True) -> Answer:
        """Ask in one piece as ``ask`` does, but a failure is not counted: the server need not be able to."""
        path, fields = self._request_of(question, False, log_probs, named_ids)
        return stoppable(self._send)(path, fields, _num_choices(question))

    def log_prob_fields(self, path: str, *, named_ids: bool = True) -> dict[str, Any]:
        """Return the fields that ask for log probabilities on a path."""
        count = self.abilities.log_probs
        fields = {"logprobs": True, "top_logprobs": count} if path == CHAT else {"logprobs": count}
        if named_ids and self.abilities.named_ids:
            fields["return_tokens_as_token_ids"] = True
        return fields

    def request(self, path: str, fields: dict[str, Any], *, num_choices: int = 1) -> Answer:
        """Send one request; a failure is counted, and raised as by ``ask``."""
        began_s = time.monotonic()
        try:
            answer = stoppable(self._send)(path, fields, num_choices)
        except StoppedError:
            raise
        except DraftproofError as error:
            self._count(error)
            raise
        with self._lock:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        return answer

    def curl(self, question: Question, *, stream: bool, log_probs: bool, key: str) -> str:
        """Return a command that asks a question again; the API key comes from a variable of that name."""
        path, fields = self._request_of(question, stream, log_probs, True)
        words = ["curl", "-sN", f"{self.url}{path}", "-H", "Content-Type: application/json"]
        body = json.dumps(self._whole_body(fields), ensure_ascii=False)
        secret = f'-H "Authorization: Bearer ${key}" ' if self._key else ""
        return f"{shlex.join(words)} {secret}-d {shlex.quote(body)}"

    def _count(self, error: DraftproofError) -> None:
        with self._lock:
            self.failures[f"{type(error).__name__}: {error.message.partition(': ')[0]}"] += 1

    def _whole_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        ids = {"return_token_ids": True} if self.abilities.token_ids else {}
        return {"model": self.abilities.model, "temperature": 0, **fields, **self._body, **ids}

    def _send(self, path: str, fields: Mapping[str, Any], num_choices: int) -> Answer:
        body = self._whole_body(fields)
        answer = answer_of(self._connection.post(path, body), int(body["max_tokens"]), num_choices)
        self._check(answer)
        return answer

    def _request_of(
        self, question: Question, stream: bool, log_probs: bool, named_ids: bool
    ) -> tuple[str, dict[str, Any]]:
        path, content = self._content(question.prompt)
        fields = {**content, "max_tokens": question.max_tokens, **question.fields}
        if log_probs and self.abilities.log_probs:
            fields |= self.log_prob_fields(path, named_ids=named_ids)
        if stream:
            fields |= {"stream": True, **(STREAM_USAGE if self.abilities.stream_usage else {})}
        return path, fields

    def _content(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        if prompt.messages:
            return CHAT, {"messages": json.loads(prompt.messages)}
        if self.abilities.completions:
            return COMPLETIONS, {"prompt": prompt.text}
        return CHAT, {"messages": [{"role": "user", "content": prompt.text}]}

    def _check(self, answer: Answer) -> None:
        if self.abilities.token_ids and answer.text and not answer.token_ids:
            raise VerificationError(f"an answer of {self.url} has no token ids, and earlier ones had")
        with self._lock:
            changed = change_of_server(self._served_by, answer.served_by)
            model, fingerprint = (
                old or new for old, new in zip(self._served_by, answer.served_by, strict=True)
            )
            self._served_by = model, fingerprint
        if changed:
            raise VerificationError(f"the server changed between two answers: {changed}")


def _num_choices(question: Question) -> int:
    return int(question.fields.get("n", 1))
