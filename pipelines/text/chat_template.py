"""Renders conversations with the chat template of a model, as transformers does.

``build/checkpoints/engine_texts.py`` writes it to ``chat.json`` in the directory of an engine. The
name of a special token inside a message stays text (``pipelines/text/special_names.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.errors import ChatTemplateError, EngineLoadError
from pipelines.text.special_names import MARK, mark_user_names

FILE_NAME = "chat.json"

Message = Mapping[str, Any]
"""``role``, ``content`` as text or as a list of parts, and what else the template reads."""

_PROGRAM = Path(__file__).with_name("chat_rendering.py")

# Stands behind the message that is continued. The space shows whether the template strips messages.
_END_MARK = "END_OF_THE_FINAL_MESSAGE "


@dataclass(frozen=True)
class ChatTemplate:
    """The templates of a model.

    Attributes:
        templates: Source by name; ``default``, and ``tool_use`` for requests with tools where there is one.
        special_tokens: Variables such as ``bos_token``.
        special_names: Names of all special tokens, which are text inside a message.
    """

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    special_names: tuple[str, ...]

    @staticmethod
    def is_in(engine: Path) -> bool:
        """Return whether the model of an engine has a template."""
        return (engine / FILE_NAME).is_file()

    @classmethod
    def read(cls, engine: Path) -> ChatTemplate:
        """Read the template of an engine.

        Args:
            engine: Directory of the engine.

        Raises:
            ChatTemplateError: The model has none.
            EngineLoadError: The file is invalid.
        """
        path = engine / FILE_NAME
        try:
            return cls.parse(path.read_text(encoding="utf-8"), path)
        except FileNotFoundError:
            raise no_chat_template(f"no {FILE_NAME} in {engine}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise _invalid(path, error) from None

    @classmethod
    def parse(cls, text: str, place: Path | str) -> ChatTemplate:
        """Read the text of ``chat.json``.

        Args:
            text: The text.
            place: Where it was found, for errors.

        Raises:
            EngineLoadError: The text is invalid.
        """
        try:
            document = json.loads(text)
            return cls(document["templates"], document["special_tokens"], tuple(document["special_names"]))
        except (ValueError, KeyError, TypeError) as error:
            raise _invalid(place, error) from None

    def source(self, name: str | None, *, with_tools: bool) -> str:
        """Return the source of a template.

        Args:
            name: Its name; None for the one that fits the request.
            with_tools: Whether the request has tools.

        Raises:
            ChatTemplateError: There is no such template.
        """
        wanted = name or ("tool_use" if with_tools and "tool_use" in self.templates else "default")
        if wanted not in self.templates:
            raise ChatTemplateError(
                f"the model has no chat template of this name: {wanted!r}",
                f"choose one of {', '.join(sorted(self.templates))}",
            )
        return self.templates[wanted]


def _invalid(place: Path | str, error: Exception) -> EngineLoadError:
    return EngineLoadError(
        f"{place} is not valid: {error!r}", "remove the engine and run 'draftproof engines'"
    )


class ChatRenderer:
    """Renders conversations in a process with limits. Thread-safe; close it, or use it in a ``with`` block.

    Args:
        template: The templates of the model.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        name: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt of a conversation, for a request with ``parse_special_tokens``.

        Args:
            messages: The conversation; values that JSON can carry.
            tools: JSON schemas of functions.
            documents: Texts to refer to.
            add_generation_prompt: End with the beginning of an answer.
            continue_final_message: End inside the last message, for an answer that continues it.
            name: Name of the template; None chooses.
            **variables: Others that the template knows, such as ``enable_thinking``.

        Raises:
            ChatTemplateError: The template refuses the conversation, fails, or exceeds its limits.
        """
        source = self._template.source(name, with_tools=tools is not None)
        if not messages:
            raise ChatTemplateError("there are no messages: messages=[]", "send a message")
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError(
                "the prompt cannot end in two ways: add_generation_prompt and continue_final_message",
                "leave one out",
            )
        given = _without_marks({"messages": messages, "tools": tools, "documents": documents, **variables})
        if not all(isinstance(message, dict) for message in given["messages"]):
            raise ChatTemplateError(
                f"a message is not an object: messages={str(messages)[:200]}",
                "send a list of objects with role and content",
            )
        final_text = _mark_end(given["messages"], source) if continue_final_message else ""
        text = self._ask(source, {"add_generation_prompt": add_generation_prompt, **given})
        if continue_final_message:
            text = _until_mark(text, final_text)
        return mark_user_names(text, self._template.special_names)

    def close(self) -> None:
        """End the process; the next conversation would start another."""
        with self._lock:
            self._end()

    def __enter__(self) -> ChatRenderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, source: str, variables: Mapping[str, Any]) -> str:
        request = {
            "source": source,
            "names": self._template.special_names,
            "mark": MARK,
            "special_tokens": self._template.special_tokens,
            "variables": variables,
        }
        with self._lock:
            try:
                answer = self._exchange(request)
            except (OSError, ValueError, RecursionError):  # the process has reached a limit that ends it
                self._end()
                answer = {"error": "it is nested too deeply, or needs too much time or memory"}
            except BaseException:  # such as KeyboardInterrupt, after which its answer would be the next one's
                self._end()
                raise
        if "error" in answer:
            raise ChatTemplateError(
                f"the chat template does not render the conversation: {answer['error']}",
                "change the messages as the reason says, to what the model was trained with",
            )
        return str(answer["text"])

    def _exchange(self, request: Mapping[str, Any]) -> dict[str, str]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(OSError):  # of what could not be written to it any more
            process.communicate()


def _without_marks(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy as JSON would carry it, with ``MARK`` in none of its texts and keys."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(conversation, ensure_ascii=False).replace(MARK, ""))
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatTemplateError(f"the conversation is not JSON: {error}", "send JSON values") from None
    return copy


def _mark_end(messages: list[dict[str, Any]], source: str) -> str:
    """Put a mark behind the last text of the last message; returns that text."""
    final, content = messages[-1], messages[-1].get("content")
    if isinstance(content, str) and "content" in source:
        final["content"] = content + _END_MARK
        return content
    parts = content if isinstance(content, list) and "content" in source else []
    for part in reversed(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _END_MARK
            return text
    raise ChatTemplateError(
        f"there is no final message to continue: the last message has keys {', '.join(map(str, final))}",
        "send the beginning of the answer as the content of the last message",
    )


def _until_mark(text: str, final_text: str) -> str:
    mark = _END_MARK.rstrip()
    if mark not in text or final_text.strip() not in text:
        raise ChatTemplateError(
            f"the chat template does not keep the final message: {final_text[:200]!r} is not in the prompt",
            "use add_generation_prompt",
        )
    end = text.rindex(mark)
    is_stripped = not text.startswith(_END_MARK, end)
    return text[:end].rstrip() if is_stripped else text[:end]


def no_chat_template(reason: str) -> ChatTemplateError:
    """Return the error of a conversation with a model that has no template."""
    return ChatTemplateError(
        f"the model has no chat template: {reason}",
        "serve an instruction-tuned model, as base models have none, or send a prompt instead of messages",
    )
