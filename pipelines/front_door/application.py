"""The paths of the front door, and the rules for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import ModelNotFoundError
from pipelines.front_door.access.clients import CLIENT, KeyRing
from pipelines.front_door.answering import RouterCalls, json_response
from pipelines.front_door.delivery import deliver
from pipelines.front_door.endpoints.anthropic import CountBody, MessagesBody, answer_message, count_tokens
from pipelines.front_door.endpoints.chat import ChatBody, answer_chat
from pipelines.front_door.endpoints.completions import CompletionBody, answer_completion
from pipelines.front_door.endpoints.kept_responses import KEPT, KeptResponses
from pipelines.front_door.endpoints.responses import ResponsesBody, answer_response
from pipelines.front_door.endpoints.tokens import DetokenizeBody, TokenizeBody, detokenize, tokenize
from pipelines.front_door.guarding import HEALTH, RequestsInProgress, needs_key, openai_application
from pipelines.front_door.observing.exchange import EXCHANGE, Exchange
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.requests.body import receive_body
from pipelines.front_door.requests.fields import read_body
from pipelines.front_door.served_model import ServedModel
from pipelines.web_application import Handler

_PLAYGROUND = Path(__file__).parent / "playground"
_PLAYGROUND_FILES = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
    "/markdown.js": ("markdown.js", "text/javascript"),
}
_PLAYGROUND_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

_RESPONSE = "/v1/responses/{response_id}"

_CODEX_INSTRUCTIONS = (  # Codex takes a list only with some; its own for unknown models have 4,000 tokens
    "You are a coding agent in a terminal. Use the tools to read files, to change them and to run commands. "
    "Make the smallest change that does what the user asks, run the tests, and say briefly what you did."
)

OPEN_PATHS = (HEALTH, *_PLAYGROUND_FILES)
"""Paths that need no API key."""

Endpoint = Callable[[web.Request, Any, ServedModel, RouterCalls], Awaitable[web.StreamResponse]]

POSTS: dict[str, tuple[type[Any], Endpoint]] = {
    "/v1/completions": (CompletionBody, answer_completion),
    "/v1/chat/completions": (ChatBody, answer_chat),
    "/v1/responses": (ResponsesBody, answer_response),
    "/v1/messages": (MessagesBody, answer_message),
    "/v1/messages/count_tokens": (CountBody, count_tokens),
    "/tokenize": (TokenizeBody, tokenize),
    "/detokenize": (DetokenizeBody, detokenize),
}
"""Path -> the dataclass that reads its body, and what answers."""


class FrontDoor:
    """Answers OpenAI's API and Anthropic's.

    Attributes:
        in_progress: The requests that are being answered.

    Args:
        model: The model that is served.
        router: Connection to ``router``.
        settings: Who may use it, and its limits.
        metrics: Publishes metrics.
        observers: Called with each exchange when it has ended.
        server_key: The server's key, with which operators choose an arm; "" for none.
        checks_model: Whether requests must name the model as it is served; one server has one model,
            whatever a client calls it.

    Raises:
        ServerStartError: The file of API keys is missing or invalid.
    """

    def __init__(
        self,
        model: ServedModel,
        router: RouterCalls,
        settings: FrontDoorSettings,
        metrics: MetricsPage,
        observers: Sequence[Callable[[Exchange], None]],
        server_key: str = "",
        *,
        checks_model: bool = False,
    ) -> None:
        self.in_progress = RequestsInProgress()
        self._model = model
        self._router = router
        self._settings = settings
        self._metrics = metrics
        self._observers = observers
        self._checks_model = checks_model
        self._keys = KeyRing(
            Path(settings.keys) if settings.keys else None,
            server_key,
            separates_caches=settings.separate_prompt_caches,
        )
        self._kept = KeptResponses(settings.max_kept_bytes)

    def application(self) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``."""
        application = openai_application(self._settings, *self._observers, open_paths=OPEN_PATHS)
        application.middlewares.append(self._admit)
        application[KEPT] = self._kept
        router = application.router
        router.add_get(HEALTH, self._health)
        router.add_get("/metrics", self._metrics.answer)
        router.add_get("/v1/models", self._models)
        router.add_get("/v1/models/{model}", self._model_named)
        router.add_get(_RESPONSE, self._kept.show)
        router.add_delete(_RESPONSE, self._kept.delete)
        for path in _PLAYGROUND_FILES:
            router.add_get(path, _show_playground)
        for path, (kind, endpoint) in POSTS.items():
            router.add_post(path, self._post(kind, endpoint))
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if needs_key(request, self._settings, OPEN_PATHS):
            request[CLIENT] = self._keys.client(request)
            request[EXCHANGE].key_name = request[CLIENT].key.name
        return await handler(request)

    def _post(self, kind: type[Any], endpoint: Endpoint) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            with self.in_progress.one_more(), request[CLIENT].request():
                content = await receive_body(request, self._settings.body_timeout_s)
                body = await read_body(kind, content, self._model.style(with_tools=True).calls)
                if self._checks_model:
                    check_model(body.model, self._model)
                if getattr(body, "arm", None):
                    self._keys.check_arm(request, body.arm)
                response = await endpoint(request, body, self._model, self._router)
                await deliver(request, response)  # until then it counts, and a drain waits for it
                return response

        return answer

    async def _health(self, request: web.Request) -> web.Response:
        is_ready = not self.in_progress.is_draining and await self._router.is_ready()
        return web.Response(status=200 if is_ready else 503)

    async def _models(self, request: web.Request) -> web.Response:
        if "client_version" in request.query:
            return json_response({"models": [_codex_document(self._model)]})
        return json_response({"object": "list", "data": [_model_document(self._model)]})

    async def _model_named(self, request: web.Request) -> web.Response:
        check_model(request.match_info["model"], self._model)
        return json_response(_model_document(self._model))


async def _show_playground(request: web.Request) -> web.Response:
    """Return a file of the page that asks the served model in a browser; it loads nothing from elsewhere."""
    name, kind = _PLAYGROUND_FILES[request.path]
    text = (_PLAYGROUND / name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=_PLAYGROUND_HEADERS)


def check_model(given: str, model: ServedModel) -> None:
    """Refuse a model that is not served; a request may leave the name out.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    if given not in ("", model.name):
        raise ModelNotFoundError(
            f"model={given[:200]!r} is not served here, but {model.name!r} is",
            "send a name that GET /v1/models lists",
        )


def _model_document(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "draftproof",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_seq_len,  # vLLM's name
        "system_fingerprint": model.fingerprint,
        "default_sampling_params": {name: value for name, (value, _) in model.sampling.items()},
        "default_sampling_sources": {name: source for name, (_, source) in model.sampling.items()},
        "chat": _chat_abilities(model),
    }


def _codex_document(model: ServedModel) -> dict[str, Any]:
    """Return what Codex asks for with its version, in its own shape (``ModelInfo`` of its protocol)."""
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": None,
        "supported_reasoning_levels": [],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "upgrade": None,
        "base_instructions": _CODEX_INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "supports_parallel_tool_calls": True,
        "context_window": model.max_seq_len,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }


def _chat_abilities(model: ServedModel) -> dict[str, Any] | None:
    """Return what the model's chat template lets it do; None without a template."""
    if model.chat is None:
        return None
    style = model.style(with_tools=True)
    return {"tool_calls": style.calls.name if style.calls else None, "reasoning": style.thoughts is not None}
