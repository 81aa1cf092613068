"""Tests of the chat template on its way from a checkpoint into an engine, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.chat_template_file import read_chat_template
from build.checkpoints.tokenizer_file import read_tokenizer
from build.engines import build_engines
from build.quantization.source import read_checkpoint_source
from pipelines.errors import CheckpointError
from pipelines.manifest import read_manifest
from pipelines.text.chat_template import ChatTemplate
from tests.support.hugging_face_checkpoints import make_hugging_face, pair_recipe
from tests.support.trained_tokenizers import byte_level

pytestmark = pytest.mark.xdist_group("torch")

PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def write(directory: Path, **documents: Any) -> Path:
    """Write a checkpoint's files around a tokenizer; ``config`` is tokenizer_config.json."""
    directory.mkdir(exist_ok=True)
    byte_level().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **documents.pop("config", {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in documents.items():
        path = directory / f"{name.replace('__', '/')}.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


TOKENS = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
    "pad_token": None,
    "additional_special_tokens": ["<s>"],
}
NAMED = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]


@pytest.mark.parametrize(
    "documents",
    [
        {"config": {"chat_template": PLAIN, **TOKENS}},
        {"config": {"chat_template": NAMED}},
        {"config": {"chat_template": "old", **TOKENS}, "chat_template": PLAIN},
        {"config": {}, "chat_template": "d", "additional_chat_templates__tool_use": "t"},
        {"config": {"chat_template": NAMED}, "chat_template": "only"},
    ],
)
def test_the_template_is_the_one_that_transformers_finds(documents: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = write(tmp_path / "model", **documents)
    found = json.loads(read_chat_template(directory) or "")
    reference = transformers.AutoTokenizer.from_pretrained(str(directory))
    expected = reference.chat_template
    assert found["templates"] == ({"default": expected} if isinstance(expected, str) else expected)
    assert found["special_tokens"] == dict(reference.special_tokens_map)
    assert found["special_names"] == ["<s>", "</s>"]


@pytest.mark.parametrize("config", [{}, {"chat_template": None}])
def test_a_base_model_has_none(config: dict[str, Any], tmp_path: Path) -> None:
    assert read_chat_template(write(tmp_path / "model", config=config)) is None


@pytest.mark.parametrize("template", [[{"name": "default"}], ["x"]])
def test_a_template_of_another_form_is_refused(template: Any, tmp_path: Path) -> None:
    directory = write(tmp_path / "model", config={"chat_template": template})
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_chat_template(directory)


def test_the_template_travels_with_the_engine_and_changes_it(tmp_path: Path) -> None:
    """The targets differ in the template alone. The draft has none, and is built once."""
    for role in ("draft", "target"):
        make_hugging_face(tmp_path / role)
    target = tmp_path / "target" / "chat_template.jinja"
    recipe = pair_recipe(
        tmp_path,
        {"checkpoint": str(tmp_path / "draft"), "quantization": "none"},
        {"checkpoint": str(tmp_path / "target"), "quantization": "none"},
    )
    engines = []
    for source, built in ((None, ["draft", "target"]), (PLAIN, ["target"]), ("other", ["target"])):
        if source is not None:
            target.write_text(source, encoding="utf-8")
        result = build_engines(recipe, tmp_path / "engines", lambda line: None)
        assert result["built"] == built
        engines.append(Path(result["target"]))
    assert len(set(engines)) == 3
    without, plain, other = engines
    assert not ChatTemplate.is_in(without)
    assert ChatTemplate.read(plain).templates == {"default": PLAIN}
    assert ChatTemplate.read(other).templates == {"default": "other"}
    assert "chat.json" in (read_manifest(plain) or {})["files"]


def test_a_checkpoint_with_sentencepieces_own_file_alone_gets_the_command_that_converts_it(
    tmp_path: Path,
) -> None:
    directory = make_hugging_face(tmp_path / "model")
    (directory / "tokenizer.json").rename(directory / "tokenizer.model")
    for read in (
        lambda: read_tokenizer(directory / "tokenizer.json"),
        lambda: read_checkpoint_source(directory),
    ):
        with pytest.raises(CheckpointError, match=r"tokenizer\.model and no") as refusal:
            read()  # type: ignore[no-untyped-call]
        assert f"AutoTokenizer.from_pretrained('{directory}').save_pretrained" in refusal.value.remedy
