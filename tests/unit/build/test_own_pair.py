"""Tests of the recipe of two directories: its checks, what is written again, and prompts that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from build import built_pair, repository
from build.built_pair import BuiltPair, check_prompts
from build.engines import build_engines
from build.own_pair import advice, main, write_recipe
from build.package import read_package, write_package
from build.preflight import check_settings, plan_recipe
from build.recipe import load_recipe
from build.repository import render_recipe
from pipelines.available_resources import available_cores
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import CheckpointError, DraftproofError, IncompatiblePairError, RecipeError
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face
from tests.support.quantized_checkpoints import pack_awq, quantize_checkpoint

MEMORY = 20e9


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return str(make_hugging_face(tmp_path / "Big-1.5B")), str(make_hugging_face(tmp_path / "small", seed=1))


def test_a_recipe_is_written_that_other_commands_read(pair: tuple[str, str], tmp_path: Path) -> None:
    lines = list[str]()
    path = write_recipe(*pair, tmp_path / "mine.yaml", "int4", 2048, MEMORY, lines.append)
    recipe = load_recipe(path)
    assert recipe.name == "big-1.5b"
    assert recipe.target.quantization == "int4"
    assert str(recipe.target.checkpoint_directory()) == pair[0]
    assert recipe.target.kv_cache.num_blocks is None and "KV caches, target" in "".join(lines)
    assert "target, int4: rounds weights of layers" in lines[-1]
    assert recipe.serving.max_seq_len <= 2048
    assert recipe.target.num_threads == recipe.draft.num_threads == available_cores()


def test_a_name_is_the_recipes_and_the_files_unless_another_file_is_named(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_recipe(*pair, None, "int8", 64, MEMORY, name="coder")
    assert (path.name, load_recipe(path).name) == ("coder.yaml", "coder")
    assert write_recipe(*pair, path, "int8", 64, MEMORY) == path, "the name of an existing recipe is kept"
    with pytest.raises(RecipeError, match="holds another recipe"):
        write_recipe(*pair, path, "int8", 64, MEMORY, name="other")
    for name in ("../coder", "a/b", ".coder", "coder.yaml"):
        with pytest.raises(RecipeError, match="name="):
            write_recipe(*pair, tmp_path / "x.yaml", "int8", 64, MEMORY, name=name)


@pytest.mark.parametrize("most", [1024, 3000, 1 << 15, 1 << 24])
def test_the_context_is_that_of_the_models_as_far_as_a_third_of_the_memory_holds_it_twice(
    most: int, pair: tuple[str, str], tmp_path: Path
) -> None:
    change_config(Path(pair[0]), max_position_embeddings=most)
    change_config(Path(pair[1]), max_position_embeddings=1 << 24)
    recipe = load_recipe(path := write_recipe(*pair, tmp_path / "mine.yaml", "int8", None, MEMORY))
    plan = plan_recipe(recipe, *check_settings(recipe), MEMORY)
    length, caches = recipe.serving.max_seq_len, 2 * recipe.serving.max_seq_len / 32
    per_block = plan.target.block + plan.draft.block
    assert length == most or (most == 1 << 24 and caches * per_block <= MEMORY / 3 < 2 * caches * per_block)
    assert plan.num_blocks["target"] == plan.num_blocks["draft"] > max(caches, min(length, 2048) / 2)
    assert write_recipe(*pair, path, "int8", None, MEMORY / 2) == path, "free memory decides only once"


def test_a_draft_as_large_as_its_target_is_warned_about_and_a_larger_one_refused(tmp_path: Path) -> None:
    large, other = (str(make_hugging_face(tmp_path / name)) for name in ("large", "other"))
    small, lines = str(make_hugging_face(tmp_path / "small", num_hidden_layers=1)), list[str]()
    write_recipe(large, small, tmp_path / "a.yaml", "int8", 64, MEMORY, lines.append)
    assert not any("only a smaller draft is faster" in line for line in lines)
    write_recipe(large, other, tmp_path / "b.yaml", "int8", 64, MEMORY, lines.append)
    assert any("only a smaller draft is faster" in line for line in lines)
    with pytest.raises(
        IncompatiblePairError, match=f"larger than the target.*: target {small}.*swap the two"
    ):
        write_recipe(small, large, tmp_path / "c.yaml", "int8", 64, MEMORY)
    assert not (tmp_path / "c.yaml").exists()


def test_a_path_that_does_not_exist_names_its_neighbour(pair: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "qwen-q4_k_m.gguf"
    file.touch()
    for wrong, right in ((f"{pair[0]}B", pair[0]), (str(tmp_path / "qwen-q4_km.gguf"), str(file))):
        with pytest.raises(CheckpointError, match=f"did you mean {right}"):
            write_recipe(wrong, pair[1], tmp_path / "mine.yaml", "auto", 64, MEMORY)
    with pytest.raises(CheckpointError, match="or check the path"):
        write_recipe(str(tmp_path / "0.gguf"), pair[1], tmp_path / "mine.yaml", "auto", 64, MEMORY)


@pytest.mark.parametrize(("rows", "written"), [(1 << 16, None), (2047, 2047)])
def test_a_head_that_is_short_already_is_not_shortened(
    rows: int, written: int | None, pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("build.own_pair.has_avx2_alone", lambda: True)
    monkeypatch.setattr("build.own_pair.has_operators", lambda: True)
    monkeypatch.setattr("build.own_pair._DRAFT_TOKENS", rows)
    lines = list[str]()
    path = write_recipe(*pair, tmp_path / "mine.yaml", "auto", 64, MEMORY, lines.append)
    assert load_recipe(path).draft.lm_head_rows == written
    assert any("a short output head" in line for line in lines) == (written is not None)


def test_the_same_command_keeps_the_recipe_and_another_does_not_replace_it(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    path = write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, MEMORY)
    edited = yaml.safe_load(path.read_text())
    edited["target"]["kv_cache"] = {"num_blocks": 99}
    edited["target"]["num_threads"] = 7
    path.write_text(yaml.safe_dump(edited))
    assert write_recipe(*pair, path, "int8", 512, 0) == path, "free memory decides only once"
    assert load_recipe(path).target.kv_cache.num_blocks == 99
    assert load_recipe(path).target.num_threads == 7
    with pytest.raises(RecipeError, match="holds another recipe"):
        write_recipe(*pair, path, "int4", 512, MEMORY)


def test_prompts_are_in_the_recipe_and_others_make_another(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("my text")
    mine = tmp_path / "mine.txt"
    path = write_recipe(*pair, tmp_path / "own.yaml", "int8", 512, MEMORY, prompts=mine)
    assert load_recipe(path).prompts_path == mine
    assert write_recipe(*pair, path, "int8", 512, MEMORY, prompts=mine) == path
    assert write_recipe(*pair, path, "int8", 512, MEMORY) == path, "those of the recipe are kept"
    path.write_text(path.read_text().replace(str(mine), "mine.txt"))
    assert write_recipe(*pair, path, "int8", 512, MEMORY, prompts=mine) == path, "relative to the recipe"
    assert write_recipe(*pair, path, "int8", 512, MEMORY) == path
    (tmp_path / "other.txt").write_text("other text")
    with pytest.raises(
        RecipeError, match=rf"holds another recipe.*draftproof demo --recipe {path} --prompts FILE, edit it"
    ):
        write_recipe(*pair, path, "int8", 512, MEMORY, prompts=tmp_path / "other.txt")


def test_a_pair_that_the_memory_does_not_hold_leaves_no_recipe(pair: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the memory does not hold this pair: 1\.0 GB free"):
        write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, 1e9)
    assert not (tmp_path / "mine.yaml").exists()


def test_a_full_disk_is_no_obstacle_to_engines_that_exist(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, MEMORY)
    engines = tmp_path / "engines"
    build_engines(load_recipe(path), engines, lambda line: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    path.unlink()
    write_recipe(*pair, path, "int8", 512, MEMORY)
    assert build_engines(load_recipe(path), engines, lambda line: None)["built"] == []
    with pytest.raises(RecipeError, match=r"disk does not hold this pair.*for the target's engine") as caught:
        build_engines(load_recipe(path), tmp_path / "others", lambda line: None)
    assert caught.value.remedy == "free some space", "the cache of the hub is not to blame"
    assert not (tmp_path / "others").exists()


def test_directories_that_are_no_pair_leave_no_recipe(pair: tuple[str, str], tmp_path: Path) -> None:
    tokenizer = Path(pair[1]) / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"merges": [', '"merges": ["a b", ', 1))
    with pytest.raises(DraftproofError):
        write_recipe(*pair, tmp_path / "mine.yaml", "int8", 512, MEMORY)
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("quantization", "gains", "expected", "heads"),
    [
        ("auto", False, ("auto", "auto"), ("int8", "int8")),
        ("auto", True, ("auto", "int4"), ("int8", "int4")),
        ("int8", False, ("int8", "auto"), ("int8", "int8")),
        ("int8", True, ("int8", "int4"), ("int8", "int4")),
        ("checkpoint", True, ("checkpoint", "checkpoint"), ("checkpoint", "checkpoint")),
    ],
)
def test_a_draft_has_4_bits_where_they_gain_and_weights_that_have_them_keep_them(
    quantization: str,
    gains: bool,
    expected: tuple[str, str],
    heads: tuple[str, str],
    pair: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("build.own_pair.has_avx2_alone", lambda: gains)
    monkeypatch.setattr("build.own_pair.has_operators", lambda: True)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 128}
    quantize_checkpoint(Path(pair[0]), settings, pack_awq, "lm_head")
    recipe = load_recipe(write_recipe(*pair, tmp_path / "mine.yaml", quantization, 512, MEMORY))
    assert (recipe.target.quantization, recipe.draft.quantization) == expected
    assert (recipe.target.lm_head, recipe.draft.lm_head) == heads


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path)]) != 0
    assert "config.json cannot be read" in capsys.readouterr().err


def test_a_target_without_a_draft_is_built_rendered_packaged_and_advised(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    lines = list[str]()
    path = write_recipe(pair[0], None, tmp_path / "alone.yaml", "int8", None, MEMORY, lines.append)
    recipe = load_recipe(path)
    assert recipe.draft is None and list(recipe.engines) == ["target"]
    assert any("draft 0.00 GB" in line for line in lines)
    assert write_recipe(pair[0], None, path, "int8", None, MEMORY) == path
    with pytest.raises(RecipeError, match="holds another recipe"):
        write_recipe(*pair, path, "int8", None, MEMORY)
    built = build_engines(recipe, tmp_path / "engines", lambda line: None)
    assert built["built"] == ["target"] and "draft" not in built
    target = Path(built["target"])
    repository = render_recipe(recipe, None, target, tmp_path / "run", free=lambda: MEMORY)
    record = PairRecord.read(repository / LOOP)
    assert record.engine_dirs == {"target": target.resolve()}
    assert pair_bytes(record.engine_dirs, record.num_kv_blocks, record.max_batch_size) > 0
    assert (
        '"draft_engine_dir" value: { string_value: "" }' in (repository / LOOP / "config.pbtxt").read_text()
    )
    write_package(BuiltPair(recipe, None, target), tmp_path / "package")
    package = read_package(tmp_path / "package", None)
    assert package.pair.draft_engine is None
    package.check_rendered(record)


def test_a_recipe_without_a_draft_has_no_fixed_length_and_is_of_the_embedded_runtime(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    path = write_recipe(pair[0], None, tmp_path / "alone.yaml", "int8", 64, MEMORY)
    with pytest.raises(RecipeError, match="has no draft, and TensorRT-LLM needs one"):
        load_recipe(path, "tensorrt_llm")
    path.write_text(path.read_text().replace("serving:", "serving:\n  num_draft_tokens: 3", 1))
    with pytest.raises(RecipeError, match="num_draft_tokens=3 without a draft"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct or amd/PARD-Qwen2.5-0.5B"),
        ("Qwen2.5-0.5B-Instruct", "such as amd/PARD-Qwen2.5-0.5B"),
        ("Big-1.5B", "parameters"),
    ],
)
def test_advice_names_published_drafts_of_the_family(name: str, known: str, tmp_path: Path) -> None:
    target = make_hugging_face(tmp_path / name)
    recipe = load_recipe(write_recipe(str(target), None, tmp_path / "a.yaml", "int8", 64, MEMORY))
    assert advice(recipe)[1].endswith(known)


TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
)


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
