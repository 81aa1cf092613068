"""Tests of the wheel ``draftproof``: only the client of the checkout, with its types and license."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines import client
from tests.conftest import REPOSITORY_ROOT
from tools.wheel.__main__ import main, project_version


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    assert main(["--output", str(folder)]) == 0
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_nothing_but_one_package_enters_site_packages(installed: Path) -> None:
    about = f"draftproof-{project_version()}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"draftproof", about}
    assert (installed / about / "top_level.txt").read_text(encoding="utf-8") == "draftproof\n"
    sources = list((installed / "draftproof").rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"\bpipelines\b|^(from|import) build\b", text, re.MULTILINE), source


def test_its_metadata_are_those_of_the_project(wheel: Path, installed: Path) -> None:
    about = installed / f"draftproof-{project_version()}.dist-info"
    metadata = email.message_from_string((about / "METADATA").read_text(encoding="utf-8"))
    assert wheel.name == f"draftproof-{project_version()}-py3-none-any.whl"
    assert (metadata["Name"], metadata["Version"]) == ("draftproof", project_version())
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.10")
    assert (about / "licenses" / "LICENSE").read_bytes() == (REPOSITORY_ROOT / "LICENSE").read_bytes()
    assert "Apache License" in (REPOSITORY_ROOT / "LICENSE").read_text(encoding="utf-8")
    needed = metadata.get_all("Requires-Dist")
    assert [re.split(r"[\[>]", each)[0] for each in needed] == ["httpx", "tritonclient"]
    project = (REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{each}"' in project for each in needed), "the checkout tests other versions"


def test_it_imports_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    modules = sorted(
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in (installed / "draftproof").rglob("*.py")
    )
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(installed)!r})\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import draftproof; print(*sorted(draftproof.__all__))\n"
        "theirs = {'aiohttp', 'jinja2', 'openvino', 'tokenizers', 'torch', 'yaml'}\n"
        "assert not ({'pipelines', 'build'} | theirs) & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(client.__all__)


@pytest.mark.slow
def test_a_type_checker_sees_its_types(installed: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from draftproof import Client, CompletionRequest\n"
        'with Client.connect("grpc://127.0.0.1:8001") as client:\n'
        '    length: str = client.generate(CompletionRequest("x", max_tokens=1)).output_ids\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", "cache"]
    done = subprocess.run(
        [*command, "--python-version", "3.10", str(program)],
        cwd=tmp_path,
        env={"MYPYPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    ours = [line for line in done.stdout.splitlines() if line.startswith("program.py")]
    assert ours == [
        'program.py:3: error: Incompatible types in assignment (expression has type "tuple[int, ...]", '
        'variable has type "str")  [assignment]'
    ], done.stdout + done.stderr
