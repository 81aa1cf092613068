"""README.md: its commands exist, its figures come from files; run: pytest tests/unit/test_readme.py."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from typing import Any

from build.recipe import EngineRecipe, KvCache, Serving
from pipelines.errors import DraftproofError, from_wire
from pipelines.serving.word_list import MAX_WORDS
from pipelines.speculation.log_probs import MAX_LOG_PROBS
from pipelines.speculation.sampling_params import SamplingParams
from tests.conftest import REPOSITORY_ROOT, tracked_files

README = (REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (REPOSITORY_ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):.*## ", MAKEFILE, re.MULTILINE))
SETTINGS = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))


def _blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def test_every_command_in_a_block_is_a_target_with_known_settings_or_a_request() -> None:
    commands = [line.partition(" #")[0].split() for block in _blocks("bash") for line in block.splitlines()]
    assert len(commands) >= 6
    for words in commands:
        if words[0] == "curl":
            assert any("/v2/models/generate/generate" in word for word in words)
            continue
        if words[0] in ("docker", "kubectl"):  # run what `make deployment` wrote
            assert any(word.startswith(".run/demo/deployment/") for word in words)
            continue
        assert words[0] == "make", words
        assert words[1] in TARGETS
        for name in re.findall(r"\b([A-Z_]+)=", " ".join(words)):
            assert name in SETTINGS, f"make {words[1]} has no setting {name}"


def test_every_make_command_in_the_prose_of_all_documents_exists() -> None:
    pages = [path for path in tracked_files() if path.endswith(".md")]
    assert "README.md" in pages
    for page in pages:
        text = (REPOSITORY_ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"`make ([a-z][a-z-]*)", text):
            assert target in TARGETS, f"{page}: make {target}"
        for name in re.findall(r"`make [^`]*?\b([A-Z_]+)=", text):
            assert name in SETTINGS, f"{page}: {name}="


def test_the_modules_that_documents_run_exist() -> None:
    for page in (path for path in tracked_files() if path.endswith(".md")):
        text = (REPOSITORY_ROOT / page).read_text(encoding="utf-8")
        for module in re.findall(r"python -m ((?:build|pipelines|docs)[\w.]*)", text):
            path = REPOSITORY_ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {module}"


def test_the_python_example_uses_names_that_exist() -> None:
    (example,) = _blocks("python")
    tree = ast.parse(example)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imported
    for node in imported:
        module = importlib.import_module(str(node.module))
        names = {alias.name: getattr(module, alias.name) for alias in node.names}
        for attribute in ast.walk(tree):
            owner = attribute.value if isinstance(attribute, ast.Attribute) else None
            if isinstance(attribute, ast.Attribute) and isinstance(owner, ast.Name):
                used = names.get("Client" if owner.id == "client" else owner.id)
                assert used is None or hasattr(used, attribute.attr), attribute.attr


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    for page in (path for path in tracked_files() if path.endswith(".md")):
        text = (REPOSITORY_ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            if not link.startswith("http") and "evaluation" not in link:
                assert ((REPOSITORY_ROOT / page).parent / link).exists(), f"{page}: {link}"


def test_every_folder_that_the_tree_shows_exists() -> None:
    tree = next(block for block in _blocks("") if "build/ " in block)
    parent = ""
    for line in tree.splitlines():
        name = line.split()[0]
        parent = parent if line.startswith(" ") else name
        path = name if name == parent else f"{parent}{name}"
        assert (REPOSITORY_ROOT / path).is_dir(), path


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for prefix, part in (("*", EngineRecipe), ("*.kv_cache", KvCache), ("serving", Serving)):
        for field in dataclasses.fields(part):
            found[f"{prefix}.{field.name}"] = field.default
    return found


def test_the_configuration_table_has_the_keys_and_defaults_of_the_code() -> None:
    defaults = _defaults()
    rows = re.findall(r"^\| `((?:\*|serving)\.[a-z_.]+)` \|[^|]*\| `?([^|`]+)`? \|", README, re.MULTILINE)
    assert {key for key, _ in rows} >= {f"serving.{field.name}" for field in dataclasses.fields(Serving)}
    for key, default in rows:
        assert str(defaults[key]).lower() == default.strip(), key


def test_the_parameter_table_has_the_names_types_and_defaults_of_the_server() -> None:
    config = (REPOSITORY_ROOT / "model_repository" / "generate" / "config.pbtxt").read_text(encoding="utf-8")
    declared = {
        name: data_type + ("[]" if dims == "-1" else "")
        for name, data_type, dims in re.findall(
            r'^input \[{ name: "(\w+)" data_type: TYPE_(\w+) dims: \[(.*?)\]', config, re.MULTILINE
        )
    }
    documented: dict[str, str] = {}
    defaults: dict[str, str] = {}
    table = README.partition("### Parameters of a request")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (`.*) \|$", table, re.MULTILINE):
        names, types, _, default, _ = (cell.strip() for cell in row.split(" | "))
        for name, data_type in zip(re.findall(r"`(\w+)`", names), types.split(", "), strict=True):
            documented[name], defaults[name] = data_type, default
    assert documented == declared
    for field in dataclasses.fields(SamplingParams):
        if field.name in defaults and field.name != "seed":
            assert float(defaults[field.name]) == field.default, field.name
    for name, limit in (
        ("num_log_probs", MAX_LOG_PROBS),
        ("stop_words", MAX_WORDS),
        ("bad_words", MAX_WORDS),
    ):
        assert re.search(rf"^\| `{name}` \|[^|]*\| (?:0 to )?{limit}\b", table, re.MULTILINE), name


def test_error_codes_in_the_documents_are_those_of_the_code() -> None:
    codes = set(re.findall(r"`draftproof/([a-z_]+)`", README)) | set(
        re.findall(r"beyond it `([a-z_]+)`", README)
    )
    assert len(codes) >= 5
    for code in codes:
        error = from_wire(f"draftproof/{code}: text")
        assert type(error) is not DraftproofError, f"no error has the code {code}"
