"""Find out what an OpenAI-compatible server can tell, by asking it.

Servers refuse fields that they do not know, or ignore them; so each ability is tried with a request and read
from its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestTimeoutError,
    TransportError,
    VerificationError,
)
from pipelines.openai_stream import ENDED_EARLY
from pipelines.validation.openai.server.answers import Answer, answer_of, id_of
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import Endpoint

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_TEXT = "The quick brown fox"
_MESSAGES = [{"role": "user", "content": _TEXT}]
_NUM_TOKENS = 8
_ATTEMPTS = 4
_FAILURES = (EngineFailedError, TransportError, RequestTimeoutError)
STREAM_USAGE = {"stream_options": {"include_usage": True}}
"""Fields that ask for numbers of tokens in a stream."""
_COUNTS_OF_ALTERNATIVES = (20, 5)  # vLLM's limit, and OpenAI's for completions
_DRAFTED = re.compile(r"^(?:\w+:)?spec_decode_num_draft_tokens(?:_total)?(?:\{.*\})? (\S+)$", re.MULTILINE)
_ENGINES = re.compile(r"^(vllm|sglang|llamacpp):", re.MULTILINE)


@dataclass(frozen=True)
class Abilities:
    """Abilities of a server to tell about its answers.

    Attributes:
        model: Model that is asked.
        engine: Owner in its list of models, where engines name themselves, or what its metrics say; "" for
            neither.
        completions: Whether it continues texts.
        chat: Whether it answers conversations.
        token_ids: Whether answers have token ids (``return_token_ids``).
        log_probs: Number of alternatives with log probabilities; 0 for none.
        named_ids: Whether alternatives are named by ids (``return_tokens_as_token_ids``).
        prompt_ids: Whether a prompt may be token ids.
        echo: Whether answers may begin with the prompt and its log probabilities.
        seed: Whether a sampled answer came again with its seed.
        streams: Whether answers can be streamed.
        ends_streams: Whether streams end with ``data: [DONE]``.
        stream_usage: Whether streams may be asked for numbers of tokens.
        counts_drafts: Whether its metrics count draft tokens.
    """

    model: str
    engine: str
    completions: bool
    chat: bool
    token_ids: bool
    log_probs: int
    named_ids: bool
    prompt_ids: bool
    echo: bool
    seed: bool
    streams: bool
    ends_streams: bool
    stream_usage: bool
    counts_drafts: bool

    def document(self) -> dict[str, Any]:
        """Return the abilities ready for JSON."""
        return asdict(self)


def find_abilities(
    endpoint: Endpoint,
    connection: Connection,
    on_failure: Callable[[DraftproofError], object] = lambda error: None,
) -> Abilities:
    """Ask a server what it can tell.

    Args:
        endpoint: The server.
        connection: Connections to it.
        on_failure: Called after each failure that is tried again.

    Raises:
        VerificationError: It has no model, several of which none was chosen, or answers no text.
        DraftproofError: It does not answer.
    """
    model, owner = _model(endpoint, connection)
    asked = _Probe(connection, {"model": model, **endpoint.body}, on_failure)
    chat = asked.chat() is not None
    first = asked.complete()
    if first is None and not chat:
        raise VerificationError(
            f"{endpoint.url} answers neither {COMPLETIONS} nor {CHAT}: {asked.refusal}",
            "check the address, the model and the fields that each request carries",
        )
    metrics = _metrics(connection)
    engine = _ENGINES.search(metrics)
    with_ids = asked.any(return_token_ids=True)
    log_probs = next((count for count in _COUNTS_OF_ALTERNATIVES if asked.log_probs(count)), 0)
    named = asked.complete(logprobs=log_probs, return_tokens_as_token_ids=True) if log_probs else None
    has_ids = with_ids is not None and bool(with_ids.token_ids)
    ids = with_ids.prompt_ids if with_ids else ()
    streams, ends_streams, stream_usage = asked.streams()
    return Abilities(
        model=model,
        engine=owner or (engine[1] if engine else ""),
        completions=first is not None,
        chat=chat,
        token_ids=has_ids,
        log_probs=log_probs,
        named_ids=named is not None and all(id_of(each.token) is not None for each in named.log_probs),
        prompt_ids=bool(ids) and asked.same(first, asked.complete(prompt=list(ids))),
        echo=asked.echoes(),
        seed=asked.same(*(asked.any(temperature=1.0, seed=7) for _ in range(2))),
        streams=streams,
        ends_streams=ends_streams,
        stream_usage=stream_usage,
        counts_drafts=_DRAFTED.search(metrics) is not None,
    )


def draft_tokens(connection: Connection) -> int | None:
    """Return how many tokens a server has drafted since its start; None if its metrics do not say."""
    found = _DRAFTED.findall(_metrics(connection))
    with suppress(ValueError, OverflowError):  # "NaN", "+Inf" and what is no number
        return round(sum(map(float, found))) if found else None
    return None


class _Probe:
    """Asks for short greedy answers; a refusal counts as none, and a failure is tried again a few times."""

    def __init__(
        self,
        connection: Connection,
        body: Mapping[str, Any],
        on_failure: Callable[[DraftproofError], object],
    ) -> None:
        self._connection = connection
        self._body = {"temperature": 0, "max_tokens": _NUM_TOKENS, **body}
        self._on_failure = on_failure
        self._has_answered = False
        self.refusal = ""

    def complete(self, **fields: Any) -> Answer | None:
        return self._ask(COMPLETIONS, {"prompt": _TEXT, **fields})

    def chat(self, **fields: Any) -> Answer | None:
        return self._ask(CHAT, {"messages": _MESSAGES, **fields})

    def any(self, **fields: Any) -> Answer | None:
        return self.complete(**fields) or self.chat(**fields)

    def log_probs(self, count: int) -> bool:
        answer = self.complete(logprobs=count) or self.chat(logprobs=True, top_logprobs=count)
        return answer is not None and any(each.alternatives for each in answer.log_probs)

    def echoes(self) -> bool:
        answer = self.complete(echo=True, logprobs=1, max_tokens=1)
        return answer is not None and answer.text.startswith(_TEXT) and len(answer.log_probs) > 1

    def streams(self) -> tuple[bool, bool, bool]:
        """Return whether an answer comes in events, which end with ``data: [DONE]``, and may have usage."""
        asked = ((COMPLETIONS, {"prompt": _TEXT}), (CHAT, {"messages": _MESSAGES}))
        for with_usage in (True, False):
            more = STREAM_USAGE if with_usage else {}
            for path, content in asked:
                ends = self._ends_stream(path, {**self._body, **content, "stream": True, **more})
                if ends is not None:
                    return True, ends, with_usage
        return False, False, False

    def _ends_stream(self, path: str, body: Mapping[str, Any]) -> bool | None:
        """Return whether the events of an answer have an end; None if there are no events."""
        for _ in range(_ATTEMPTS):
            has_begun = False
            try:
                for _ in self._connection.post(path, body):
                    has_begun = True
                return has_begun or None
            except InvalidRequestError:
                return None
            except _FAILURES as error:
                if has_begun:  # another failure is counted when streams are compared
                    return ENDED_EARLY not in str(error)
                self._on_failure(error)
        return None

    @staticmethod
    def same(first: Answer | None, second: Answer | None) -> bool:
        return first is not None and second is not None and first.text == second.text

    def _ask(self, path: str, fields: Mapping[str, Any]) -> Answer | None:
        for _ in range(_ATTEMPTS):
            try:
                answer = answer_of(self._connection.post(path, {**self._body, **fields}), 2 * _NUM_TOKENS)
                self._has_answered = True
                return answer
            except InvalidRequestError as error:
                self.refusal = str(error)
                return None
            except _FAILURES as error:
                if isinstance(error, RequestTimeoutError) and not self._has_answered:
                    raise  # nobody waits several times for a server that is silent from the beginning
                self._on_failure(error)
                self.refusal = str(error)
        return None


def _model(endpoint: Endpoint, connection: Connection) -> tuple[str, str]:
    """Return the model to ask and its owner, which several engines name after themselves."""
    try:
        document = json.loads(connection.get("/v1/models"))
        listed = {str(each["id"]): str(each.get("owned_by") or "") for each in document["data"]}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        listed = {}
    except (EngineFailedError, ModelNotFoundError):  # no list, or a server that fails to make one
        if not endpoint.model:
            raise
        listed = {}
    if endpoint.model:
        return endpoint.model, listed.get(endpoint.model, "")
    if len(listed) != 1:
        raise VerificationError(
            f"which model to ask is not known: {endpoint.url} lists {', '.join(sorted(listed)) or 'none'}",
            "name it with --model and --control-model",
        )
    ((model, owner),) = listed.items()
    return model, owner


def _metrics(connection: Connection) -> str:
    try:
        return connection.get("/metrics")
    except DraftproofError:
        return ""
