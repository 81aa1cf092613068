"""Tests of packages: a pair is written, copied, checked and rendered; whatever differs is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build import repository
from build.built_pair import BuiltPair
from build.package import LIST, RECIPE, SIGNATURE, read_package, recipe_document, write_package
from build.recipe import RECIPES, load_recipe, parse_recipe
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.triton.launch import Launch, PackageOrigin
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import PackageError
from pipelines.manifest import sha256_bytes
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import tiny_recipe
from tests.stand_in_tensorrt_llm import repository as tensorrt_llm
from tests.support.tiny_engines import build_tiny_pair

TARGET = "engines/target"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> BuiltPair:
    engines = build_tiny_pair(tmp_path_factory.mktemp("engines"))
    return BuiltPair(replace(tiny_recipe("tiny"), prompts="prompts.jsonl"), *engines)


@pytest.fixture
def package(pair: BuiltPair, tmp_path: Path) -> Path:
    """Return a package that a test may damage."""
    write_package(pair, tmp_path / "package")
    for folder, _, names in os.walk(tmp_path / "package"):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            Path(path).chmod(0o755)
    return tmp_path / "package"


def key_pair(folder: Path, name: str, algorithm: str = "ed25519") -> tuple[Path, Path]:
    """Make a private and a public key with OpenSSL, as a user does."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    for command in (
        ["openssl", "genpkey", "-algorithm", algorithm, "-out", str(private)],
        ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return private, public


def sign(package: Path, private: Path) -> None:
    """Sign a package as a user does."""
    command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", str(private), "-in", str(package / LIST)]
    subprocess.run([*command, "-out", str(package / SIGNATURE)], check=True, capture_output=True)


def refused(directory: Path, public_key: Path | None = None) -> PackageError:
    """Return the error with which a package is refused, after checking its parts."""
    with pytest.raises(PackageError) as raised:
        read_package(directory, public_key)
    error = raised.value
    assert error.message and error.remedy, error
    return error


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_a_packaged_recipe_is_the_recipe(name: str) -> None:
    recipe = load_recipe(name)
    again = parse_recipe(json.loads(json.dumps(recipe_document(recipe))), recipe.path)
    assert again == replace(recipe, prompts=None)


def test_a_package_holds_the_pair_and_no_path_of_this_machine(pair: BuiltPair, package: Path) -> None:
    read = read_package(package, None)
    assert replace(read.pair.recipe, path=pair.recipe.path) == replace(pair.recipe, prompts=None)
    assert read.sha256 == sha256_bytes((package / LIST).read_bytes())
    own = [str(REPOSITORY_ROOT).encode(), str(pair.draft_engine.parent).encode(), str(package).encode()]
    files = [path for path in package.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if any(path_of_ours in path.read_bytes() for path_of_ours in own)] == []


def test_a_copy_is_rendered_when_the_original_is_gone(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copied elsewhere"
    shutil.copytree(package, copy)
    shutil.rmtree(package)
    run = tmp_path / "run" / "server"
    assert repository.main(["--package", str(copy), "--run-directory", str(run)]) == 0
    assert Launch.read(run).package == PackageOrigin(str(copy), read_package(copy, None).sha256)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == {"model_repository": str(run / "model_repository"), "recipe": "tiny"}
    record = PairRecord.read(run / "model_repository" / "speculative")
    assert record.target_engine_dir == str(copy / TARGET)
    assert (record.draft_digest, record.target_digest) == read_package(copy, None).digests
    rendered = [path for path in run.rglob("*") if path.is_file()]
    assert [path for path in rendered if str(package).encode() in path.read_bytes()] == []


def test_the_plan_of_gpu_memory_is_in_the_package(tmp_path: Path) -> None:
    made_by = tensorrt_llm.recipe()
    engines = [tensorrt_llm.write_engine(tmp_path / role, role, made_by) for role in ("draft", "target")]
    write_package(BuiltPair(made_by, *engines, tensorrt_llm.MEMORY), tmp_path / "package")
    read = read_package(tmp_path / "package", None)
    assert read.pair.memory == tensorrt_llm.MEMORY
    run = tmp_path / "run" / made_by.name
    assert repository.main(["--package", str(read.directory), "--run-directory", str(run)]) == 0
    target = (run / "model_repository" / "target" / "config.pbtxt").read_text()
    assert f'"{tmp_path / "package" / TARGET}"' in target


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def replace_by_link(path: Path) -> None:
    path.rename(path.parents[3] / "elsewhere")
    path.symlink_to(path.parents[3] / "elsewhere")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "damage", "seen"),
    [
        (f"{TARGET}/engine.bin", flip, "sha256 "),
        (f"{TARGET}/tokenizer.json", flip, "sha256 "),
        (f"{TARGET}/manifest.json", flip, "sha256 "),
        (RECIPE, flip, "sha256 "),
        (f"{TARGET}/engine.bin", lambda path: os.truncate(path, 8), "sha256 "),
        (f"{TARGET}/engine.xml", Path.unlink, "No such file"),
        (f"{TARGET}/engine.bin", replace_by_link, "not a plain file"),
        (f"{TARGET}/engine.bin", replace_by_pipe, "not a plain file"),
        (f"{TARGET}/extra.txt", Path.touch, "not in SHA256SUMS"),
        ("model.py", lambda path: path.symlink_to("/dev/null"), "not in SHA256SUMS"),
    ],
)
def test_a_file_that_differs_is_named(package: Path, name: str, damage: Damage, seen: str) -> None:
    read_package(package, None)
    damage(package / name)
    error = refused(package)
    assert error.message.startswith(f"{package} is not the package that was made")
    assert f"{name}: " in error.message and seen in error.message


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (r"(.*)  recipe.yaml", r"\1  ../../recipe.yaml", "../../recipe.yaml: not a path inside"),
        (r"(.*)  recipe.yaml", r"\1  /etc/passwd", "/etc/passwd: not a path inside"),
        (r".*  engines/target/engine.bin\n", "", "engines/target/engine.bin: not in SHA256SUMS"),
        (r"(.*)  recipe.yaml", r"\1 *recipe.yaml", "SHA256SUMS, line "),
        (r"(?s).*", "", "SHA256SUMS, line 1: ''"),
        (r"(?s).*", "{", "SHA256SUMS, line 1: '{'"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(package: Path, old: str, new: str, told: str) -> None:
    listed = package / LIST
    listed.write_text(re.sub(old, new, listed.read_text(), count=1))
    assert told in str(refused(package))


def relist(package: Path) -> None:
    """List a package as it is, as ``sha256sum`` does."""
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file())
    kept = [name for name in names if name not in (LIST, SIGNATURE)]
    done = subprocess.run(["sha256sum", *kept], cwd=package, check=True, capture_output=True)
    (package / LIST).write_bytes(done.stdout)


def test_the_list_is_that_of_sha256sum(package: Path) -> None:
    before = (package / LIST).read_bytes()
    relist(package)
    assert (package / LIST).read_bytes() == before


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": []}', '{"files": {"a": 1}}'])
def test_a_manifest_that_is_none_is_refused(package: Path, manifest: str) -> None:
    (package / TARGET / "manifest.json").write_text(manifest)
    relist(package)
    refused(package)


def test_any_other_directory_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).message.startswith(f"{tmp_path} is not a package")
    assert refused(tmp_path / "missing").remedy.startswith("name the directory that holds SHA256SUMS")


def test_another_engine_with_its_own_manifest_is_refused(package: Path, tmp_path: Path) -> None:
    """Also if it takes the place of the first one between the check and the rendering."""
    read = read_package(package, None)
    other = build_tiny_pair(tmp_path / "other", seed=9)[1]
    shutil.rmtree(package / TARGET)
    shutil.copytree(other, package / TARGET)
    assert f"{TARGET}/manifest.json: sha256" in refused(package).message
    engines = read.pair.draft_engine, read.pair.target_engine
    rendered = repository.render_recipe(read.pair.recipe, *engines, tmp_path / "run")
    with pytest.raises(PackageError, match="the package changed while it was read"):
        read.check_rendered(PairRecord.read(rendered / "speculative"))


def test_a_signed_package_is_accepted_with_its_key_and_without(package: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "ours")
    sign(package, private)
    read_package(package, public)
    read_package(package, None)


def test_what_the_key_has_not_signed_is_refused(package: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "ours")
    other = key_pair(tmp_path, "other")[1]
    unsigned = refused(package, public)
    assert "the package is not signed" in unsigned.message and "openssl pkeyutl" in unsigned.remedy
    sign(package, private)
    assert "signed with another key" in refused(package, other).message
    signature = (package / SIGNATURE).read_bytes()
    (package / SIGNATURE).write_bytes(b"no signature")
    assert "signed with another key" in refused(package, public).message
    (package / SIGNATURE).write_bytes(signature)
    # As somebody would who can change the package, but has not the key: all digests fit.
    (package / RECIPE).write_text((package / RECIPE).read_text() + "# changed\n")
    relist(package)
    read_package(package, None)
    assert "or has changed since" in refused(package, public).message


def test_a_key_that_cannot_be_used_is_refused(package: Path, tmp_path: Path) -> None:
    private, _ = key_pair(tmp_path, "ours")
    sign(package, private)
    other_kind = key_pair(tmp_path, "x", "x25519")[1]
    for key in (private, tmp_path / "missing", package / RECIPE, other_kind):
        assert "is no Ed25519 public key in a PEM file" in refused(package, key).message


def test_only_a_package_is_replaced(pair: BuiltPair, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(PackageError, match=r"it is not a package and would be replaced; name another path"):
        write_package(pair, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    write_package(pair, tmp_path / "package")
    write_package(replace(pair, recipe=replace(pair.recipe, name="newer")), tmp_path / "package")
    assert read_package(tmp_path / "package", None).pair.recipe.name == "newer"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "package"]


def test_a_directory_whose_server_runs_keeps_its_pair_unless_that_is_to_be_replaced(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run" / "tiny"
    command = ["--package", str(package), "--run-directory", str(run)]
    assert repository.main(command) == 0
    (run / "launch.json").write_text("{}")  # the directory was rendered by `draftproof repository`
    before = (run / "model_repository").stat().st_ino
    monkeypatch.setattr("build.repository.is_listening", lambda path: path.name.endswith(".sock"))
    assert repository.main(command) == 1
    assert " with another pair than " in capsys.readouterr().err
    assert (run / "model_repository").stat().st_ino == before
    assert repository.main([*command, "--replace", "--served-model-name", "known"]) == 0
    assert (run / "model_repository").stat().st_ino != before
    assert ServedFiles.read(run).name == "known"


def test_a_packaged_pair_has_the_checkouts_fingerprint(
    pair: BuiltPair, package: Path, tmp_path: Path
) -> None:
    """By fingerprints a rollout knows whether the candidate is the pair in service."""
    read = read_package(package, None)
    engines = read.pair.draft_engine, read.pair.target_engine
    rendered = repository.render_recipe(read.pair.recipe, *engines, tmp_path / "a")
    own = repository.render_recipe(pair.recipe, pair.draft_engine, pair.target_engine, tmp_path / "b")
    fingerprints = {PairRecord.read(each / "speculative").fingerprint for each in (rendered, own)}
    assert len(fingerprints) == 1
