"""Tests that prompts which a recipe cannot use are refused before anything is downloaded or compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build import built_pair, repository
from build.built_pair import check_prompts
from build.own_pair import write_recipe
from build.recipe import load_recipe
from pipelines.errors import RecipeError
from tests.support.hugging_face_checkpoints import make_hugging_face

MEMORY = 20e9
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return str(make_hugging_face(tmp_path / "big")), str(make_hugging_face(tmp_path / "small", seed=1))


def conversation(tmp_path: Path, role: str = "user") -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": role, "content": "hello"}]}))
    return path


def give_template(checkpoint: str) -> None:
    (Path(checkpoint) / "chat_template.jinja").write_text(TEMPLATE)


def test_conversations_for_a_base_target_leave_no_recipe(pair: tuple[str, str], tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    with pytest.raises(RecipeError, match=r"no chat template for 1 conversations"):
        write_recipe(*pair, output, "int8", 512, MEMORY, prompts=conversation(tmp_path))
    assert not output.exists()
    give_template(pair[0])
    write_recipe(*pair, output, "int8", 512, MEMORY, prompts=conversation(tmp_path))
    assert output.exists()


def test_what_the_template_refuses_is_named(pair: tuple[str, str], tmp_path: Path) -> None:
    give_template(pair[0])
    with pytest.raises(RecipeError, match=r"prompt chat-0001: .*TemplateError: no system"):
        write_recipe(
            *pair, tmp_path / "mine.yaml", "int8", 512, MEMORY, prompts=conversation(tmp_path, "system")
        )


def test_no_engine_is_compiled_for_prompts_that_are_refused_later(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, MEMORY)
    path.write_text(f"{path.read_text()}prompts: {conversation(tmp_path)}\n")
    monkeypatch.setattr(built_pair, "build_engines", None)
    assert repository.main(["--recipe", str(path)]) == 1
    assert "no chat template for 1 conversations" in capsys.readouterr().err


def test_a_recipe_without_prompts_needs_no_check(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, MEMORY)
    monkeypatch.setattr("subprocess.run", None)
    check_prompts(load_recipe(path))
