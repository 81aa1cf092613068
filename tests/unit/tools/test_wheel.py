"""Tests of the wheel ``draftproof``: client, ``verify`` and pytest plugin, with types and license."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines import client
from pipelines.validation.openai.baseline import write_baseline
from tests.conftest import REPOSITORY_ROOT
from tests.support.recorded_baseline import BASELINE
from tools.wheel.__main__ import DATA, PIPELINES, main, project_version

VERIFY = {"jinja2", "pydantic", "scipy"}
OF_EXTRA = ("draftproof.validation", "draftproof.bench")


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
    for name in DATA:
        assert (installed / "draftproof" / name).read_bytes() == (PIPELINES / name).read_bytes()


def test_its_metadata_are_those_of_the_project(wheel: Path, installed: Path) -> None:
    about = installed / f"draftproof-{project_version()}.dist-info"
    metadata = email.message_from_string((about / "METADATA").read_text(encoding="utf-8"))
    assert wheel.name == f"draftproof-{project_version()}-py3-none-any.whl"
    assert (metadata["Name"], metadata["Version"]) == ("draftproof", project_version())
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.10")
    assert (about / "licenses" / "LICENSE").read_bytes() == (REPOSITORY_ROOT / "LICENSE").read_bytes()
    assert "Apache License" in (REPOSITORY_ROOT / "LICENSE").read_text(encoding="utf-8")
    parts = [each.partition("; ") for each in metadata.get_all("Requires-Dist") or ()]
    extras = {re.split(r"[\[>]", name)[0]: extra for name, _, extra in parts}
    assert {name for name, extra in extras.items() if not extra} == {"httpx", "tritonclient"}
    assert {name for name, extra in extras.items() if extra == 'extra == "verify"'} == VERIFY
    project = (REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{name}' in project for name, *_ in parts), "the checkout tests other versions"


@pytest.mark.parametrize("with_extra", [False, True], ids=["without extras", "verify"])
def test_it_imports_with_nothing_but_what_it_requires(
    with_extra: bool, installed: Path, tmp_path: Path
) -> None:
    modules = sorted(
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in (installed / "draftproof").rglob("*.py")
    )
    kept = [name for name in modules if with_extra or not name.startswith(OF_EXTRA)]
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(installed)!r})\n"
        f"for name in {kept!r}: importlib.import_module(name)\n"
        "import draftproof; print(*sorted(draftproof.__all__))\n"
        "theirs = {'aiohttp', 'openvino', 'tokenizers', 'torch', 'yaml'}\n"
        f"theirs |= {set() if with_extra else VERIFY}\n"
        "assert not ({'pipelines', 'build'} | theirs) & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(client.__all__)


def run_installed(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


def test_the_command_says_which_extra_is_missing(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['scipy'] = None; sys.argv = ['draftproof', 'verify', '--help']\n"
        "from draftproof.command import main; sys.exit(main())"
    )
    done = run_installed(installed, tmp_path, "-c", program)
    assert done.returncode == 1 and "pip install 'draftproof[verify]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_test_without_a_verdict_fails_without_a_traceback(installed: Path, tmp_path: Path) -> None:
    write_baseline(tmp_path / "baseline.json.gz", BASELINE)
    (tmp_path / "test_it.py").write_text(
        "def test_same(same_answers):\n    same_answers('http://127.0.0.1:9', 'baseline.json.gz')\n"
    )
    done = run_installed(installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.returncode == 1 and "no verdict: no server answers" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout and "draftproof/" not in done.stdout


@pytest.mark.long
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
