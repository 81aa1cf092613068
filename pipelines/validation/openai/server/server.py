"""Ask an OpenAI-compatible server the prompts of a comparison."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.openai.server.abilities import CHAT, COMPLETIONS, draft_tokens, find_abilities
from pipelines.validation.openai.server.answers import Answer, answer_of, change_of_server
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.stopping import StoppedError, stoppable


class OpenAIServer:
    """An OpenAI-compatible server, for any number of threads.

    Args:
        endpoint: Where it is.
        timeout_s: Longest wait for the next bytes of an answer.

    Raises:
        DraftproofError: It does not answer, or has no model to ask.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._connection = Connection(endpoint, timeout_s)
        self._body = dict(endpoint.body)
        self.url = endpoint.url
        self.abilities = stoppable(find_abilities)(endpoint, self._connection)
        self._served_by = ("", "")
        self._lock = threading.Lock()
        self.failures: Counter[str] = Counter()
        """Kinds of failed requests -> how many there were."""

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

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

    def ask(self, question: Question, *, stream: bool = False) -> Answer:
        """Ask a question, greedily unless its fields say otherwise; a failure is counted.

        Args:
            question: What to ask.
            stream: Whether the answer arrives in events.

        Raises:
            DraftproofError: There is no answer, or it contradicts itself or earlier ones.
        """
        return self.request(*self._request_of(question), stream=stream)

    def ask_with_log_probs(self, question: Question, *, named_ids: bool) -> Answer:
        """Ask a question with the log probabilities of the likeliest tokens, unless it is asked without.

        Args:
            question: What to ask.
            named_ids: Whether to name tokens by their ids, if the server can.

        Raises:
            DraftproofError: As in ``ask``.
        """
        return self.request(*self._request_with_log_probs(question, named_ids))

    def try_out(self, question: Question) -> Answer:
        """Ask as ``ask_with_log_probs``, but a failure is not counted: the server need not be able to."""
        return stoppable(self._send)(*self._request_with_log_probs(question, named_ids=True), stream=False)

    def log_prob_fields(self, path: str, *, named_ids: bool = True) -> dict[str, Any]:
        """Return the fields that ask for log probabilities on a path."""
        count = self.abilities.log_probs
        fields = {"logprobs": True, "top_logprobs": count} if path == CHAT else {"logprobs": count}
        if named_ids and self.abilities.named_ids:
            fields["return_tokens_as_token_ids"] = True
        return fields

    def request(self, path: str, fields: dict[str, Any], *, stream: bool = False) -> Answer:
        """Send one request; a failure is counted, and raised as by ``ask``."""
        try:
            return stoppable(self._send)(path, fields, stream=stream)
        except StoppedError:
            raise
        except DraftproofError as error:
            with self._lock:
                self.failures[f"{type(error).__name__}: {error.message.partition(': ')[0]}"] += 1
            raise

    def _send(self, path: str, fields: dict[str, Any], *, stream: bool) -> Answer:
        body = {"model": self.abilities.model, "temperature": 0, **fields, **self._body}
        if self.abilities.token_ids:
            body["return_token_ids"] = True
        if stream:
            body["stream"] = True
        answer = answer_of(self._connection.post(path, body), int(body["max_tokens"]))
        self._check(answer)
        return answer

    def _request_of(self, question: Question) -> tuple[str, dict[str, Any]]:
        path, content = self._content(question.prompt)
        return path, {**content, "max_tokens": question.max_tokens, **question.fields}

    def _request_with_log_probs(self, question: Question, named_ids: bool) -> tuple[str, dict[str, Any]]:
        path, fields = self._request_of(question)
        if question.with_log_probs and self.abilities.log_probs:
            fields |= self.log_prob_fields(path, named_ids=named_ids)
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


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        prompt: A text to continue or a conversation to answer; its id names the question in reports.
        max_tokens: Most tokens of the answer.
        feature: Name of the feature that it uses (``features``); "" for a plain greedy answer.
        fields: Further fields of the request.
        with_log_probs: Whether the control is asked for log probabilities with it.
    """

    prompt: Prompt
    max_tokens: int
    feature: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    with_log_probs: bool = True
