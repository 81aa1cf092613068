"""Read files of prompts: JSON lines with a text or chat messages, or plain text.

``*.jsonl`` has one JSON object per line, with ``prompt``, ``text`` or ``messages``, and optionally ``id``;
other keys are ignored. In ``*.txt``, a line ``---`` separates prompts. A folder contains such files, and each
of them is one set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError

_SUFFIXES = (".jsonl", ".txt")
_MAX_BYTES = 1 << 28
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)
_TEXT_KEYS = ("prompt", "text", "messages")
_ROOT = Path(__file__).resolve().parents[2]


def read_prompts(path: Path) -> Prompts:
    """Read a file of prompts, or a folder of such files.

    Repeated prompts of a set are left out, with a note.

    Raises:
        InvalidRequestError: A file cannot be read, has a line that is no prompt, or none; an id occurs twice.
    """
    sets: dict[str, tuple[Prompt, ...]] = {}
    notes = []
    for file in _files(path):
        found = list(_read_jsonl(file) if file.suffix == ".jsonl" else _read_text(file))
        by_hash: dict[bytes, Prompt] = {}
        for prompt in found:
            by_hash.setdefault(prompt.sha256, prompt)
        unique = tuple(by_hash.values())
        if len(unique) < len(found):
            notes.append(f"repeated in {file.name} and left out: {len(found) - len(unique)}")
        if not unique:
            raise _refused(
                "a file has no prompts",
                f"{file}: {file.stat().st_size} bytes, 0 prompts",
                "at least one prompt in each file",
                "add prompts to the file, or leave it out",
            )
        if file.stem in sets:
            raise _refused(
                "two sets of prompts have one name",
                f"{file}: a set {file.stem!r} has been read",
                "different names of files, without their endings",
                "rename the file",
            )
        sets[file.stem] = unique
    largest_first = sorted(sets.items(), key=lambda each: len(each[1]), reverse=True)
    prompts = Prompts(_shown(path), dict(largest_first), tuple(notes))
    _check_ids(prompts)
    return prompts


def _files(path: Path) -> list[Path]:
    try:
        path.stat()
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise _unreadable(error) from None
    files = [file for file in inside if file == path or (file.suffix in _SUFFIXES and file.is_file())]
    wrong = [file for file in files if file.suffix not in _SUFFIXES]
    if wrong or not files:
        raise _refused(
            "the prompts have no form that is known",
            str(path),
            f"a file {' or '.join(f'*{suffix}' for suffix in _SUFFIXES)}, or a folder with such files",
            "convert the prompts to JSON lines with the key prompt or messages, and name the file *.jsonl",
        )
    return files


def _read_text(file: Path) -> Iterator[Prompt]:
    texts = [text.strip("\n") for text in _SEPARATOR.split(_content(file))]
    for number, text in enumerate(filter(str.strip, texts), start=1):
        yield Prompt(f"{file.stem}-{number:04d}", text)


def _read_jsonl(file: Path) -> Iterator[Prompt]:
    # JSON strings may contain other ends of lines, at which str.splitlines would split.
    for number, line in enumerate(_content(file).split("\n"), start=1):
        if line.strip():
            yield _prompt_of(line, file, number)


def _content(file: Path) -> str:
    size = file.stat().st_size
    if not file.is_file() or size > _MAX_BYTES:  # a FIFO would be waited for, and a device never ends
        raise _refused(
            "the prompts are no file, or too large a file",
            f"{file}: {size:,} bytes" if file.is_file() else f"{file}: a FIFO, socket or device",
            f"a file of at most {_MAX_BYTES:,} bytes",
            "write the prompts to a file, and name a part of them if they are too many",
        )
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(error) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _refused(
            "the prompts are not in UTF-8",
            f"{file}, line {line}: byte 0x{error.object[error.start]:02x}, {error.reason}",
            "text in UTF-8",
            "convert the file to UTF-8, for example with iconv, or name another",
        ) from None


def _prompt_of(line: str, file: Path, number: int) -> Prompt:
    place = f"{file}, line {number}"
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise _no_prompt(place, f"column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise _no_prompt(place, str(error)) from None
    if not isinstance(document, dict):
        raise _no_prompt(place, f"no JSON object: {line.strip():.40}")
    given = [key for key in _TEXT_KEYS if key in document]
    if len(given) != 1:
        raise _no_prompt(place, f"keys {', '.join(map(str, document)) or 'none'}")
    prompt_id = document.get("id", f"{file.stem}-{number:04d}")
    if not isinstance(prompt_id, str | int):
        raise _no_prompt(place, f"id={prompt_id!r:.80}")
    value = document[given[0]]
    if given == ["messages"]:
        return Prompt(str(prompt_id), "", messages=_messages_of(value, place))
    if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
        raise _no_prompt(place, f"{given[0]}={value!r:.80}")
    return Prompt(str(prompt_id), value)


def _messages_of(value: Any, place: str) -> str:
    try:
        return json_of_messages(value)
    except (ValueError, RecursionError) as error:
        raise _refused(
            "a line is no conversation",
            f"{place}: {error}",
            "messages: a list of JSON objects with a role, and a last one that the model answers",
            "correct the line; leave the answer of the assistant out at the end",
        ) from None


def _is_unicode(text: Any) -> bool:
    """Return whether a text has no lone surrogates, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_ids(prompts: Prompts) -> None:
    seen: set[str] = set()
    for prompt in prompts.all:
        if prompt.prompt_id in seen:
            raise _refused(
                "the prompts contain an id twice",
                f"{prompts.source}: {prompt.prompt_id}",
                "a unique id for each prompt, in all files together",
                "change the id, or leave out all ids",
            )
        seen.add(prompt.prompt_id)


def _shown(path: Path) -> str:
    """Return a path for reports, relative to the repository if it is inside."""
    absolute = path.resolve()
    return str(absolute.relative_to(_ROOT) if absolute.is_relative_to(_ROOT) else path)


def _no_prompt(place: str, values: str) -> InvalidRequestError:
    return _refused(
        "a line is no prompt",
        f"{place}: {values}",
        "a JSON object with exactly one of prompt (text), text, and messages, and optionally id",
        "correct the line; Unicode text only, and not only whitespace",
    )


def _unreadable(error: OSError) -> InvalidRequestError:
    return _refused(
        "the prompts cannot be read",
        f"{error.filename}: {error.strerror}",
        "files that exist, and that this user may read",
        "correct the path in --prompts or in the recipe's key prompts, or grant access",
    )


def _refused(what: str, values: str, limit: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(what, values=values, limit=limit, remedy=remedy)


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
        raise ValueError("a message is no JSON object with a role")
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
