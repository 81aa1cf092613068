"""Read files of prompts: JSON lines with a text or chat messages, or plain text.

``*.jsonl`` has one JSON object per line, with ``prompt``, ``text`` or ``messages``, and optionally ``id``;
other keys are ignored. In ``*.txt``, a line ``---`` separates prompts; without one, each line is a prompt. A
folder contains such files, and each of them is one set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError
from pipelines.places import CODE

_SUFFIXES = (".jsonl", ".txt")
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)
_TEXT_KEYS = ("prompt", "text", "messages")


def read_prompts(path: Path) -> Prompts:
    """Read a file of prompts, or a folder of such files.

    Repeated prompts of a set are left out, with a note.

    Raises:
        InvalidRequestError: A file cannot be read, has a line that is no prompt, or none; an id occurs twice.
    """
    sets: dict[str, tuple[Prompt, ...]] = {}
    notes = []
    ids: set[str] = set()
    for file in _files(path):
        found = list(_read_jsonl(file) if file.suffix == ".jsonl" else _read_text(file))
        by_hash: dict[bytes, Prompt] = {}
        for prompt in found:
            by_hash.setdefault(prompt.sha256, prompt)
        unique = tuple(by_hash.values())
        if len(unique) < len(found):
            notes.append(f"repeated in {file.name} and left out: {len(found) - len(unique)}")
        if not unique or file.stem in sets:
            wrong = "has the name of another set, but for its ending" if unique else "has no prompts"
            raise InvalidRequestError(f"{file} {wrong}", "rename the file, or leave it out")
        for prompt in unique:
            if prompt.prompt_id in ids:
                raise InvalidRequestError(
                    f"{file} has the id {prompt.prompt_id} of another prompt",
                    "change the id, or leave out all ids",
                )
            ids.add(prompt.prompt_id)
        sets[file.stem] = unique
    largest_first = sorted(sets.items(), key=lambda each: len(each[1]), reverse=True)
    return Prompts(_shown(path), dict(largest_first), tuple(notes))


def _files(path: Path) -> list[Path]:
    try:
        path.stat()
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise _unreadable(error) from None
    files = [file for file in inside if file.suffix in _SUFFIXES and file.is_file()]
    if not files:
        raise InvalidRequestError(
            f"{path} is neither *.jsonl or *.txt nor a folder with such files",
            "convert the prompts to JSON lines with the key prompt or messages, and name the file *.jsonl",
        )
    return files


def _read_text(file: Path) -> Iterator[Prompt]:
    content = _content(file)
    texts = _SEPARATOR.split(content) if _SEPARATOR.search(content) else content.split("\n")
    texts = [text.strip("\n") for text in texts]
    for number, text in enumerate(filter(str.strip, texts), start=1):
        yield Prompt(f"{file.stem}-{number:04d}", text)


def _read_jsonl(file: Path) -> Iterator[Prompt]:
    # JSON strings may contain other ends of lines, at which str.splitlines would split.
    for number, line in enumerate(_content(file).split("\n"), start=1):
        if line.strip():
            yield _prompt_of(line, file, number)


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(error) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidRequestError(
            f"{file}, line {line} is not in UTF-8: byte 0x{error.object[error.start]:02x}, {error.reason}",
            "convert the file to UTF-8, for example with iconv, or name another",
        ) from None


def _prompt_of(line: str, file: Path, number: int) -> Prompt:
    """Return the prompt in a line of JSON."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError(f"not a JSON object: {line.strip():.40}")
        given = [key for key in _TEXT_KEYS if key in document]
        if len(given) != 1:
            raise ValueError(f"keys {', '.join(map(str, document)) or 'none'}")
        prompt_id = document.get("id", f"{file.stem}-{number:04d}")
        if not isinstance(prompt_id, str | int):
            raise ValueError(f"id={prompt_id!r:.80}")
        value = document[given[0]]
        if given == ["messages"]:
            return Prompt(str(prompt_id), "", messages=json_of_messages(value))
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{given[0]}={value!r:.80}")
        value.encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
        return Prompt(str(prompt_id), value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"{file}, line {number} is no prompt: {error}",
            "make it a JSON object with one of prompt, text and messages, which end before the assistant's "
            "answer, and optionally id",
        ) from None


def _shown(path: Path) -> str:
    """Return a path for reports, relative to the repository if it is inside."""
    absolute = path.resolve()
    return str(absolute.relative_to(CODE) if absolute.is_relative_to(CODE) else path)


def _unreadable(error: OSError) -> InvalidRequestError:
    return InvalidRequestError(
        f"the prompts cannot be read: {error.filename}: {error.strerror}",
        "correct the path in --prompts or in the recipe's key prompts, or grant access",
    )


def json_of_messages(messages: Any) -> str:
    """Return the messages of a conversation as JSON without spaces, with keys in their order.

    Args:
        messages: Value of the key ``messages``.

    Raises:
        ValueError: It is no conversation that a model can answer, with the reason.
    """
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages is no list of messages")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
        raise ValueError("a message is not a JSON object with a role")
    for message in messages:
        content = message.get("content")
        # Calls of tools have no content.
        if not isinstance(content, str | list) and (content is not None or message["role"] != "assistant"):
            raise ValueError(f"a message of role {message['role']!r:.40} has no content, a text or a list")
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's, and leaves nothing to answer")
    text = json.dumps(messages, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
    return text


def last_content(messages: str) -> str:
    """Return the text of the last message of a conversation; "" if it has none.

    Args:
        messages: Messages as JSON, as ``json_of_messages`` returns them.
    """
    content = json.loads(messages)[-1].get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))
