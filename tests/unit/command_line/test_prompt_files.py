"""Tests of prompt files: their forms, and what is said about lines that are no prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt
from pipelines.errors import InvalidRequestError


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines_have_a_prompt_or_a_text_and_may_have_an_id(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "output_tokens": 9},
        {"text": "two\u2028lines", "id": 7},
        {"prompt": " three\n"},
    ]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    prompts = read_prompts(written(tmp_path / "mine.jsonl", "\ufeff" + text))
    assert {prompt.prompt_id: prompt.text for prompt in prompts.all} == {
        "mine-0001": "one",
        "7": "two\u2028lines",
        "mine-0005": " three\n",
    }
    assert prompts.source == str(tmp_path / "mine.jsonl")


def test_a_line_of_dashes_separates_prompts_of_plain_text(tmp_path: Path) -> None:
    text = "first\n\nstill first\n---\nsecond --- here\n--- \n\n---\n    third\n"
    prompts = read_prompts(written(tmp_path / "mine.txt", text))
    assert [prompt.text for prompt in prompts.all] == ["first\n\nstill first", "second --- here", "    third"]


def test_without_such_a_line_each_line_of_plain_text_is_a_prompt(tmp_path: Path) -> None:
    prompts = read_prompts(written(tmp_path / "mine.txt", "first\n\n  second\n--- third\n"))
    assert [prompt.text for prompt in prompts.all] == ["first", "  second", "--- third"]


def test_a_folder_is_one_set_per_file_with_the_largest_first(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", "one")
    written(tmp_path / "b.jsonl", '{"prompt": "two"}\n{"prompt": "three"}\n')
    written(tmp_path / "README.md", "no prompts")
    assert {name: len(of_set) for name, of_set in read_prompts(tmp_path).sets.items()} == {"b": 2, "a": 1}
    assert list(read_prompts(tmp_path).sets) == ["b", "a"]


def test_repeated_prompts_are_left_out_aloud(tmp_path: Path) -> None:
    lines = '{"prompt": "one"}\n{"prompt": "two"}\n{"prompt": "one"}\n'
    prompts = read_prompts(written(tmp_path / "mine.jsonl", lines))
    assert [prompt.text for prompt in prompts.all] == ["one", "two"]
    assert prompts.notes == ("repeated in mine.jsonl and left out: 1",)


def test_messages_keep_their_keys_in_order_and_repeat_whatever_the_spaces(tmp_path: Path) -> None:
    line = '{"id": "c", "messages": [{"role": "user", "content": "caf\\u00e9"}], "tools": []}'
    prompts = read_prompts(written(tmp_path / "chat.jsonl", f"{line}\n{line.replace(' ', '')}"))
    (prompt,) = prompts.all
    assert prompt == Prompt("c", "", messages='[{"role":"user","content":"caf\u00e9"}]')
    assert prompts.notes == ("repeated in chat.jsonl and left out: 1",)


def test_a_message_that_calls_a_tool_needs_no_content(tmp_path: Path) -> None:
    call = '{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "4"}'
    line = f'{{"messages": [{{"role": "user", "content": "2 + 2?"}}, {call}]}}'
    assert len(read_prompts(written(tmp_path / "chat.jsonl", line)).all) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("garbage", "Expecting value"),
        ("[1]", "not a JSON object"),
        ("{}", "keys none"),
        ('{"conversations": []}', "keys conversations"),
        ('{"prompt": "x", "text": "y"}', "keys prompt, text"),
        ('{"prompt": 3}', "prompt=3"),
        ('{"prompt": " \\n"}', "prompt=' "),
        ('{"prompt": "\\ud800"}', "surrogates"),
        ('{"prompt": "x", "id": null}', "id=None"),
        ("[" * 100_000, "recursion"),
        ('{"messages": []}', "no list"),
        ('{"messages": ["text"]}', "with a role"),
        ('{"messages": [{"content": "x"}]}', "with a role"),
        ('{"messages": [{"role": "user", "content": 3}]}', "role 'user' has no content"),
        ('{"messages": [{"role": "system"}, {"role": "user", "content": "x"}]}', "role 'system' has no"),
        ('{"messages": [{"role": "assistant", "content": "y"}]}', "nothing to answer"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogates"),
        ('{"messages": [{"role": "user", "content": "x", "weight": NaN}]}', "not JSON compliant"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(line: str, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(InvalidRequestError) as caught:
        read_prompts(path)
    assert caught.value.message.startswith(f"{path}, line 2 is no prompt: ")
    assert reason in caught.value.message and caught.value.remedy


@pytest.mark.parametrize(
    ("files", "named", "message"),
    [
        ({}, "absent.jsonl", "absent.jsonl: No such file"),
        ({}, ".", r"neither \*.jsonl"),
        ({"data.json": b"[]"}, "data.json", r"neither \*.jsonl"),
        ({"latin.txt": b"one\ncaf\xe9"}, "latin.txt", "line 2 is not in UTF-8: byte 0xe9"),
        ({"empty.txt": b"---\n"}, "empty.txt", "has no prompts"),
        ({"a.txt": b"one", "a.jsonl": b'{"prompt": "two"}'}, ".", "has the name of another set"),
        (
            {"twice.jsonl": b'{"text": "x", "id": 1}\n{"text": "y", "id": "1"}'},
            "twice.jsonl",
            "the id 1 of another",
        ),
    ],
)
def test_files_without_prompts_are_refused(
    files: dict[str, bytes], named: str, message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        read_prompts(tmp_path / named)
    assert str(tmp_path) in caught.value.message and caught.value.remedy
