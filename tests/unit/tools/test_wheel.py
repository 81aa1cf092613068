"""Tests of the wheel ``draftproof``: client, programs and pytest plugin, with types and license."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines import client
from pipelines.errors import DraftproofError
from pipelines.validation.openai.baseline import write_baseline
from pipelines.version import Sources
from tests.conftest import REPOSITORY_ROOT
from tests.support.recorded_baseline import BASELINE
from tools.wheel import __main__ as program
from tools.wheel.__main__ import build_small, required_by_servers
from tools.wheel.small import PIPELINES, data_of, sources_of_package

VERSION = Sources.find().version
OF_UPSTREAMS = {
    "aiohttp",
    "backports.zstd",
    "llguidance",
    "prometheus-client",
    "pyyaml",
    "tokenizers",
    "tritonclient",
    "uvloop",
}
BY_NAME = {
    "aiohttp",
    "backports",
    "llguidance",
    "prometheus_client",
    "yaml",
    "tokenizers",
    "tritonclient",
    "uvloop",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_nothing_but_one_package_enters_site_packages(installed: Path) -> None:
    about = f"draftproof-{VERSION}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"draftproof", about}
    assert (installed / about / "top_level.txt").read_text(encoding="utf-8") == "draftproof\n"
    sources = list((installed / "draftproof").rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"\bpipelines\b|^(from|import) build\b", text, re.MULTILINE), source
    assert Path("front_door/playground/index.html") in data_of(sources_of_package())
    for name in data_of(sources_of_package()):
        assert (installed / "draftproof" / name).read_bytes() == (PIPELINES / name).read_bytes()


def test_its_metadata_are_those_of_the_project(wheel: Path, installed: Path) -> None:
    about = installed / f"draftproof-{VERSION}.dist-info"
    metadata = email.message_from_string((about / "METADATA").read_text(encoding="utf-8"))
    assert wheel.name == f"draftproof-{VERSION}-py3-none-any.whl"
    assert (metadata["Name"], metadata["Version"]) == ("draftproof", VERSION)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.10")
    assert (about / "licenses" / "LICENSE").read_bytes() == (REPOSITORY_ROOT / "LICENSE").read_bytes()
    assert "Apache License" in (REPOSITORY_ROOT / "LICENSE").read_text(encoding="utf-8")
    parts = [each.partition("; ") for each in metadata.get_all("Requires-Dist") or ()]
    extras = {re.split(r"[\[<>]", name)[0]: extra for name, _, extra in parts}
    always = {name for name, extra in extras.items() if not extra}
    assert always == {"httpx", "jinja2", "pydantic", "scipy"}
    assert {name for name, extra in extras.items() if 'extra == "upstreams"' in extra} == OF_UPSTREAMS
    (serve,) = (name for name, _, extra in parts if 'extra == "serve"' in extra)
    assert serve == f"draftproof-serve=={VERSION}"
    project = (REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tested = [name for name, *_ in parts if name != serve and "," not in name]
    assert all(f'"{name}' in project for name in tested), "the checkout tests other versions"


@pytest.mark.parametrize("has_extra", [False, True], ids=["without extras", "upstreams"])
def test_it_imports_with_nothing_but_what_it_requires(
    has_extra: bool, installed: Path, tmp_path: Path
) -> None:
    every = sorted(
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in (installed / "draftproof").rglob("*.py")
    )
    verify = ["draftproof.command", "draftproof.pytest_plugin", "draftproof.validation.openai.command"]
    missing = {"openvino", "torch", "pytriton", "draftproof_serve"} | (set() if has_extra else BY_NAME)
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(installed)!r})\n"
        f"sys.modules.update(dict.fromkeys({sorted(missing)!r}))\n"
        f"for name in {every if has_extra else verify!r}: importlib.import_module(name)\n"
        "import draftproof; print(*sorted(draftproof.__all__))\n"
        "assert not {'pipelines', 'build'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(client.__all__)


def run_installed(
    installed: Path, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize(
    ("command", "version", "said"),
    [
        ("upstreams", (3, 12), "pip install 'draftproof[upstreams]'"),
        ("serve", (3, 12), "pip install 'draftproof[serve]'"),
        ("serve", (3, 13), "uv python install 3.12"),
    ],
)
def test_the_command_says_what_to_install(
    command: str, version: tuple[int, int], said: str, installed: Path, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.modules['yaml'] = None; sys.argv = ['draftproof', {command!r}, '--help']\n"
        "from draftproof.command import main\n"
        f"sys.version_info = (*{version!r}, 0, 'final', 0); sys.exit(main())"
    )
    done = run_installed(installed, tmp_path, "-c", program)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_the_client_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['tritonclient'] = None; from draftproof import Client"
    done = run_installed(installed, tmp_path, "-c", program)
    assert done.returncode == 1 and "pip install 'draftproof[client]'" in done.stderr, done.stderr


def test_it_knows_its_version_and_writes_where_xdg_says(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['draftproof', '--version']\n"
        "from draftproof.places import CACHE, DATA, RUN; print(DATA, RUN, CACHE, flush=True)\n"
        "from draftproof.command import main; sys.exit(main())"
    )
    home = tmp_path / "home"
    done = run_installed(installed, tmp_path, "-c", program, HOME=str(home), XDG_CACHE_HOME=str(tmp_path))
    places, version = done.stdout.splitlines()
    expected = (home / ".local/share", home / ".local/state", tmp_path)
    assert places == " ".join(f"{folder}/draftproof" for folder in expected)
    assert version.startswith(f"draftproof {VERSION}, commit {Sources.find().commit[:12]}")


def test_the_server_requires_what_the_checkout_does() -> None:
    lines = required_by_servers().splitlines()
    assert any(line.startswith('    "openvino==') for line in lines)
    assert all(line.startswith('    "') for line in lines)


def test_operators_that_many_machines_cannot_load_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("build.operators.library.compiled_library", lambda: b"GLIBC_2.14 GLIBC_2.38")
    with pytest.raises(DraftproofError, match=r"the operators need GLIBC 2\.38"):
        program._write_operators(tmp_path)


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
