"""Tests of the chat template and the sampling parameters on their way from a checkpoint into an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.engine_texts import (
    engine_text_digests,
    read_chat_template,
    read_engine_texts,
    read_sampling_defaults,
    write_engine_texts,
)
from build.checkpoints.tokenizer_file import read_tokenizer
from build.engines import build_engines
from build.quantization.source import read_checkpoint_source
from pipelines.errors import CheckpointError
from pipelines.manifest import read_manifest
from pipelines.text.chat_template import ChatTemplate
from tests.support.hugging_face_checkpoints import make_hugging_face, pair_recipe
from tests.support.trained_tokenizers import byte_level

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


BOTH = {"default": "d", "tool_use": "t"}


@pytest.mark.parametrize(
    ("documents", "templates"),
    [
        ({"config": {"chat_template": PLAIN, **TOKENS}}, {"default": PLAIN}),
        ({"config": {"chat_template": NAMED}}, BOTH),
        ({"config": {"chat_template": "old", **TOKENS}, "chat_template": PLAIN}, {"default": PLAIN}),
        ({"config": {}, "chat_template": "d", "additional_chat_templates__tool_use": "t"}, BOTH),
        ({"config": {"chat_template": NAMED}, "chat_template": "only"}, {"default": "only"}),
    ],
)
def test_the_template_is_the_one_that_transformers_finds(
    documents: dict[str, Any], templates: dict[str, str], tmp_path: Path
) -> None:
    # As AutoTokenizer.from_pretrained of transformers 5.14 found them.
    found = json.loads(read_chat_template(write(tmp_path / "model", **documents)) or "")
    assert found["templates"] == templates
    named = {"bos_token": "<s>", "eos_token": "</s>"} if "bos_token" in documents["config"] else {}
    assert found["special_tokens"] == named
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


def test_a_checkpoint_with_sentencepieces_file_alone_gets_the_command_for_it(tmp_path: Path) -> None:
    directory = make_hugging_face(tmp_path / "model")
    (directory / "tokenizer.json").rename(directory / "tokenizer.model")
    for read in (
        lambda: read_tokenizer(directory / "tokenizer.json"),
        lambda: read_checkpoint_source(directory),
    ):
        with pytest.raises(CheckpointError, match=r"tokenizer\.model and no") as refusal:
            read()  # type: ignore[no-untyped-call]
        assert f"AutoTokenizer.from_pretrained('{directory}').save_pretrained" in refusal.value.remedy


QWEN3 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


def write_generation_config(directory: Path, document: Any) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def test_recommended_values_reach_the_engine(tmp_path: Path) -> None:
    texts = read_engine_texts(write_generation_config(tmp_path, QWEN3))
    assert list(texts) == ["sampling.json"] == list(engine_text_digests(texts))
    write_engine_texts(tmp_path, texts)
    written = json.loads((tmp_path / "sampling.json").read_text(encoding="utf-8"))
    assert written == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_a_checkpoint_may_recommend_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) is None
    assert (
        read_sampling_defaults(write_generation_config(tmp_path, {"eos_token_id": 2, "top_k": None})) is None
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "0.6"), ("top_k", 1.5), ("top_p", 1.1), ("top_p", 0), ("min_p", True), ("top_k", -1)],
)
def test_an_invalid_value_is_refused_with_its_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="recommends") as refused:
        read_sampling_defaults(write_generation_config(tmp_path, {name: value}))
    assert f"{name}=" in refused.value.message and refused.value.remedy
