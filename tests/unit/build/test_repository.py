"""Tests of rendering: undefined names are errors, and the rendered models fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.files import write_manifest
from build.recipe import load_recipe
from build.rendering.rendered_pair import RenderedPair
from build.rendering.templates import TEMPLATES, config_templates, render_repository, render_text
from build.repository import render_recipe
from pipelines.errors import EngineLoadError, RepositoryError
from pipelines.manifest import EngineFiles, engine_digest, sha256_file
from pipelines.wire.fields import TEXT_INPUTS


def write_template(templates: Path, model: str, text: str) -> None:
    version = templates / model / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("# adapter\n")
    (templates / model / "config.pbtxt").write_text(f'backend: "python"\n{text}')


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engines = tmp_path_factory.mktemp("engines")
    for role in ("draft", "target"):
        write_engine_files(engines / f"{role}-1")
    return render_recipe(load_recipe("demo"), engines / "draft-1", engines / "target-1", engines / "run")


def write_engine_files(directory: Path) -> None:
    directory.mkdir()
    (directory / "engine.bin").write_bytes(b"weights")
    (directory / "tokenizer.json").write_text("{}")
    write_manifest(directory, {"fingerprint": directory.name})


@pytest.mark.parametrize("role", ["draft", "target"])
def test_an_engine_that_was_changed_is_not_served(tmp_path: Path, role: str) -> None:
    for name in ("draft", "target"):
        write_engine_files(tmp_path / name)
    (tmp_path / role / "engine.bin").write_bytes(b"weighty")
    with pytest.raises(EngineLoadError, match="was changed since the engine was built"):
        render_recipe(load_recipe("demo"), tmp_path / "draft", tmp_path / "target", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["${max_seq_length}", "a lone $"])
def test_a_name_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(RepositoryError, match=r"target/config\.pbtxt has a placeholder.*known: max_seq_len"):
        render_text(text, {"max_seq_len": "8"}, "target/config.pbtxt")


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb"])
def test_a_value_that_would_break_out_of_its_quotes_is_refused(value: str) -> None:
    with pytest.raises(RepositoryError, match="cannot be quoted"):
        render_text('"${a}"', {"a": value}, "target/config.pbtxt")


def test_rendering_again_replaces_the_whole(tmp_path: Path) -> None:
    write_template(tmp_path / "templates", "target", '"${a}"')
    out = tmp_path / "out"
    render_repository(tmp_path / "templates", "embedded", {"a": "1"}, out)
    (out / "left_over").mkdir()
    assert render_repository(tmp_path / "templates", "embedded", {"a": "2"}, out) == ["target"]
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()) == [
        "target/1/model.py",
        "target/config.pbtxt",
    ]
    assert (out / "target" / "config.pbtxt").read_text() == 'backend: "python"\n"2"'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "templates"]


def test_nothing_to_render_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"has no <model>/config\.pbtxt"):
        render_repository(tmp_path, "embedded", {}, tmp_path / "out")


def test_every_model_of_the_design_is_rendered(rendered: Path) -> None:
    names = {path.name for path in rendered.iterdir()}
    assert names == {
        *("router", "speculative"),
        *("ensemble", "ensemble_steps", "preprocessing", "postprocessing"),
    }
    for model in rendered.iterdir():
        text = (model / "config.pbtxt").read_text()
        assert f'name: "{model.name}"' in text
        assert "$" not in text
        assert (model / "1").is_dir()
        assert (model / "1" / "model.py").is_file() is ('platform: "ensemble"' not in text)


def test_the_recipe_decides_what_the_models_read(rendered: Path) -> None:
    recipe = load_recipe("demo")
    text = (rendered / "speculative" / "config.pbtxt").read_text()
    parameters = dict(re.findall(r'key: "(\w+)" value: { string_value: "([^"]*)" }', text))
    assert parameters["max_draft_len"] == str(recipe.serving.max_draft_len)
    assert parameters["engine_access"] == "in_process"
    assert parameters["draft_num_kv_blocks"] == str(recipe.draft.kv_cache.num_blocks)
    assert parameters["target_engine_dir"].endswith("/target-1")


def test_models_name_the_digests_of_what_they_were_rendered_for(tmp_path: Path) -> None:
    digests = {}
    for role in ("draft", "target"):
        write_engine_files(tmp_path / role)
        (tmp_path / role / "engine.bin").write_text(role)
        write_manifest(tmp_path / role, {"fingerprint": role})
        digests[role] = engine_digest(EngineFiles(tmp_path / role).manifest)
    tokenizer = sha256_file(tmp_path / "target" / "tokenizer.json")
    repository = render_recipe(load_recipe("demo"), tmp_path / "draft", tmp_path / "target", tmp_path / "run")
    configs = {path.parent.name: path.read_text() for path in repository.glob("*/config.pbtxt")}
    told = {model: dict(re.findall(r'key: "(\w+)" .*"([^"]*)" }', text)) for model, text in configs.items()}
    assert [told["speculative"][f"{role}_engine_digest"] for role in digests] == [*digests.values()]
    texts = [parameters for parameters in told.values() if "tokenizer_file" in parameters]
    assert [each["tokenizer_sha256"] for each in texts] == [tokenizer] * 2


PASSED_ON = {name: each.engine for name, each in TEXT_INPUTS.items() if each.passed_on}


def tensors(config: str, kind: str) -> dict[str, str]:
    """Return name -> type and shape of a model's inputs or outputs."""
    pattern = rf'^{kind} \[{{ name: "(\w+)" data_type: (\w+ dims: \[[^\]]*\])'
    return dict(re.findall(pattern, config, re.MULTILINE))


def test_the_text_model_reaches_the_engine_and_has_its_tensors(rendered: Path) -> None:
    ours, theirs = ((rendered / name / "config.pbtxt").read_text() for name in ("router", "speculative"))
    for arm, name in (("stable", "socket"), ("control", "target_socket")):
        socket = re.search(rf'key: "{arm}_socket" value: {{ string_value: "([^"]+)"', ours)
        assert socket and f'key: "{name}" value: {{ string_value: "{socket[1]}"' in theirs
    inputs, outputs = tensors(ours, "input"), tensors(ours, "output")
    assert set(inputs) == set(TEXT_INPUTS)
    given = tensors(theirs, "input")
    assert {engine: inputs[name] for name, engine in PASSED_ON.items()}.items() <= given.items()
    given = tensors(theirs, "output")
    for name in set(outputs) - {"text_output", "arm", "fallback_from"}:
        assert outputs[name].split()[0] == given[name].split()[0], name


def test_the_ensemble_has_the_tensors_of_generate_and_hands_on_all_of_them(rendered: Path) -> None:
    ours, generate = ((rendered / name / "config.pbtxt").read_text() for name in ("ensemble", "router"))
    expected = {kind: tensors(generate, kind) for kind in ("input", "output")}
    for name, each in TEXT_INPUTS.items():
        if not each.in_ensemble:
            del expected["input"][name]
    for name in ("arm", "fallback_from"):
        del expected["output"][name]
    assert {kind: tensors(ours, kind) for kind in expected} == expected
    steps = dict(re.findall(r'model_name: "(\w+)"(.*?)\}\]', ours, re.DOTALL))
    assert list(steps) == ["preprocessing", "speculative", "postprocessing"]
    maps = {
        (model, kind): dict(re.findall(rf'{kind}_map {{ key: "(\w+)" value: "(\w+)" }}', step))
        for model, step in steps.items()
        for kind in ("input", "output")
    }
    for (model, kind), mapped in maps.items():
        theirs = tensors((rendered / model / "config.pbtxt").read_text(), kind)
        assert set(mapped) == set(theirs) - {"prompt_length", "prediction_ids"}, (
            "of those who ask speculative"
        )
    handed_in = {name for model in steps for name in maps[model, "input"].values()}
    made = {name for model in steps for name in maps[model, "output"].values()}
    assert handed_in - made == set(tensors(ours, "input"))
    for name, engine_name in PASSED_ON.items():
        assert maps["speculative", "input"][engine_name] == name
    assert (maps["speculative", "input"]["streaming"], maps["postprocessing", "output"]["OUTPUT"]) == (
        "stream",
        "text_output",
    )


@pytest.mark.parametrize("name", ["preprocessing", "postprocessing"])
def test_an_end_of_the_ensemble_is_a_single_step_with_its_tensors(rendered: Path, name: str) -> None:
    ours, step = ((rendered / each / "config.pbtxt").read_text() for each in (name, "ensemble_steps"))
    for kind in ("input", "output"):
        mapped = re.findall(rf'{kind}_map {{ key: "(\w+)" value: "(\w+)" }}', ours)
        own, inner = tensors(ours, kind), tensors(step, kind)
        assert len(mapped) == len(own)
        assert {name: inner[inner_name] for inner_name, name in mapped} == own


def test_templates_of_a_runtime_are_joined_and_those_of_another_left_out(tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    for model, names in {
        "both": ("config.pbtxt", "config.embedded.pbtxt", "config.tensorrt_llm.pbtxt"),
        "other": ("config.tensorrt_llm.pbtxt",),
    }.items():
        (templates / model / "1").mkdir(parents=True)
        (templates / model / "1" / "model.py").write_text("# adapter\n")
        for name in names:
            (templates / model / name).write_text(f"# {name}\n")
    out = tmp_path / "out"
    assert render_repository(templates, "embedded", {}, out) == ["both"]
    assert (out / "both" / "config.pbtxt").read_text() == "# config.pbtxt\n\n# config.embedded.pbtxt\n"
    assert render_repository(templates, "tensorrt_llm", {}, out) == ["both", "other"]
    # Only the Python backend has code; Triton wants the folder in any case.
    assert not list(out.rglob("*.py")) and (out / "other" / "1").is_dir()


def test_every_value_has_a_use_and_every_name_a_value(tmp_path: Path) -> None:
    write_engine_files(tmp_path / "engine")
    engine = EngineFiles(tmp_path / "engine")
    blocks = {"draft": 64, "target": 64}
    pair = RenderedPair(load_recipe("demo"), engine, engine, Path("run"), num_kv_blocks=blocks)
    named = {
        name
        for folder in TEMPLATES.iterdir()
        for path in config_templates(folder, "embedded")
        for name in re.findall(r"\$\{(\w+)\}", path.read_text())
    }
    assert named == set(pair.values)
