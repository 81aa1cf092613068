"""The model that a front door serves, made from the description of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import ServerBusyError
from pipelines.front_door.messages.style import MessageStyle
from pipelines.router.preprocessing import PromptLimits
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.time_limit import within
from pipelines.wire.request import CompletionRequest

_MAX_OPEN = 64
_WITHIN_S = 10.0  # a conversation takes milliseconds, a hostile one a second


class ChatRenderers:
    """A queue of conversations for the chat template of a model. ``render`` is used on one event loop.

    Attributes:
        template: The templates of the model.

    Args:
        template: See above.
        max_open: Most conversations that are rendered or wait.
        within_s: Longest time until one is rendered.
    """

    def __init__(
        self, template: ChatTemplate, max_open: int = _MAX_OPEN, within_s: float = _WITHIN_S
    ) -> None:
        self.template = template
        self._max_open = max_open
        self._within_s = within_s
        self._num_open = 0
        self._is_idle = asyncio.Semaphore(1)
        self._renderer = ChatRenderer(template)
        self._thread = ThreadPoolExecutor(1, "chat")

    async def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt of a conversation; see ``ChatRenderer.render``.

        Raises:
            ChatTemplateError: The template refuses the conversation, fails, or exceeds its limits.
            ServerBusyError: Too many conversations wait, or this one waited too long.
        """
        if self._num_open >= self._max_open:
            raise _busy(
                f"{self._num_open} conversations are being rendered, and at most {self._max_open} at a time"
            )
        self._num_open += 1
        try:
            rendering = self._in_turn(partial(self._renderer.render, messages, **options))
            return await within(self._within_s, rendering)
        except asyncio.TimeoutError:
            raise _busy(f"the conversation was not rendered within {self._within_s:g} s") from None
        finally:
            self._num_open -= 1

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown(cancel_futures=True)
        self._renderer.close()

    async def _in_turn(self, work: partial[str]) -> str:
        """Render when the process is idle: in the queue of the thread, it would outlive its client."""
        await self._is_idle.acquire()
        rendering = asyncio.get_running_loop().run_in_executor(self._thread, work)
        rendering.add_done_callback(lambda _: self._is_idle.release())
        return await asyncio.shield(rendering)  # goes on if the client leaves


def _busy(what: str) -> ServerBusyError:
    return ServerBusyError(what, "send the request again later")


_DIGITS = 12
_QUICK_CHARACTERS = 4096  # take about a millisecond; longer texts are tokenized on another thread

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class ServedModel:
    """The model of a recipe.

    Attributes:
        name: Name of the recipe, which clients send as ``model``.
        fingerprint: Digest of the target's engine. Servers with the same one give the same answers.
        max_seq_len: Most tokens of prompt and answer together.
        max_requests: Most requests that are answered or wait at a time.
        created_s: Unix time at which the repository was rendered.
        tokenizer: Tokenizer of the target.
        defaults: Sampling parameters of requests that name none.
        chat: Renders conversations; None if the model has no chat template.
        sampling: The same sampling parameters by name, each with who chose it.
    """

    name: str
    fingerprint: str
    max_seq_len: int
    max_requests: int
    created_s: int
    tokenizer: PromptTokenizer
    defaults: CompletionRequest
    chat: ChatRenderers | None
    sampling: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: ServedFiles) -> ServedModel:
        """Return the model of a description, with its tokenizer and its chat template.

        Raises:
            EngineLoadError: The tokenizer or the template is not supported.
        """
        template = ChatTemplate.parse(files.chat, files.name) if files.chat is not None else None
        tokenizer = PromptTokenizer(files.tokenizer.encode(), Path(files.name) / "tokenizer.json")
        if template is not None:
            tokenizer.load_parser()  # now: the first chat would hold up all streams
        return cls(
            name=files.name,
            fingerprint=files.target_digest[:_DIGITS],
            max_seq_len=files.max_seq_len,
            max_requests=files.max_requests,
            created_s=files.created_s,
            chat=ChatRenderers(template) if template is not None else None,
            defaults=CompletionRequest(
                **{name: value for name, (value, _) in files.default_sampling.items()}
            ),
            sampling=files.default_sampling,
            tokenizer=tokenizer,
        )

    def style(self, *, with_tools: bool) -> MessageStyle:
        """Return how the model writes thoughts and calls, by its template with or without tools."""
        return self._styles[with_tools]

    @cached_property
    def _styles(self) -> dict[bool, MessageStyle]:
        if self.chat is None:
            return {False: MessageStyle(), True: MessageStyle()}
        template, special = self.chat.template, self.tokenizer.vocabulary.special.items()
        ids = {name.decode(): token_id for token_id, name in special}
        return {
            tools: MessageStyle.of(template.source(None, with_tools=tools), ids) for tools in (False, True)
        }

    @cached_property
    def limits(self) -> PromptLimits:
        """Limits of prompts."""
        return PromptLimits(self.tokenizer.vocabulary, self.max_seq_len)

    async def encode(
        self, text: str, name: str, *, add_special_tokens: bool, parse_special_tokens: bool = False
    ) -> TokenIds:
        """Return the tokens of a text; long ones are tokenized on another thread.

        Args:
            text: The text.
            name: The field that it came in.
            add_special_tokens: Whether to add the tokenizer's special tokens, such as BOS.
            parse_special_tokens: Whether names of special tokens in the text mean these.

        Raises:
            InvalidRequestError: The text has no tokens, or names a special token that cannot be spelled.
            PromptTooLongError: The text is longer than any prompt.
        """
        self.limits.check_bytes(len(text.encode()), name)

        def work() -> list[int]:
            return self.tokenizer.encode(
                text, add_special_tokens=add_special_tokens, parse_special_tokens=parse_special_tokens
            )

        is_loaded = self.tokenizer.can_parse or not parse_special_tokens
        is_quick = is_loaded and len(text) <= _QUICK_CHARACTERS
        ids = work() if is_quick else await asyncio.to_thread(work)
        self.limits.check_not_empty(len(ids), name)
        return tuple(ids)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt's tokens, with the names of special ones."""
        return b"".join(map(self.bytes_of, token_ids)).decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; the name of a special one."""
        vocabulary = self.tokenizer.vocabulary
        return vocabulary.special.get(token_id) or vocabulary.join([token_id])
