"""Tests of the architecture: who may import whom, and what tools must see and leave alone."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.breakages.__main__ import find_tests, place_of, read_breakages, read_sources
from tests.conftest import QUARANTINE, REPOSITORY_ROOT, tracked_files
from tools import size

# Each part of pipelines and the parts it may import. New parts must be added here on purpose.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "program": {"errors"},
    "__main__": {"program", "version"},  # the command imports the requested program by its name
    "manifest": {"errors"},
    "configuration": {"errors"},
    "socket_path": {"errors"},
    "atomic_file": set(),
    "places": set(),
    "version": {"places"},
    "process": set(),
    "asyncio_thread": set(),
    "available_resources": set(),
    "engine_memory": {"errors"},
    "time_left": set(),
    "time_limit": set(),
    "openai_stream": {"errors"},
    "kserve_stream": {"time_limit"},
    "web_application": {"errors"},
    "text": {"errors", "time_limit"},
    "speculation": {"errors"},
    "executor": {
        *("errors", "asyncio_thread", "available_resources", "engine_memory", "manifest"),
        *("speculation", "text"),
    },
    "wire": {"errors", "asyncio_thread", "time_limit", "speculation", "text"},
    "router": {
        *("errors", "atomic_file", "configuration", "process", "socket_path", "time_limit"),
        *("speculation", "text", "wire"),
    },
    "client": {"errors", "program", "wire"},
    "building": {"errors", "program", "places"},  # runs programs of build
    "deploy": {
        *("errors", "program", "building", "atomic_file", "configuration", "manifest", "socket_path"),
        *("available_resources", "text", "speculation", "process", "places"),
    },
    "triton": {
        *("errors", "program", "asyncio_thread", "available_resources", "manifest", "kserve_stream"),
        *("atomic_file", "time_limit", "executor", "speculation", "text", "wire", "router", "deploy"),
        *("process", "web_application", "places"),
    },
    "front_door": {
        *("socket_path", "wire", "web_application"),
        *("errors", "program", "atomic_file", "manifest", "configuration", "client", "deploy", "text"),
        *("router", "time_limit"),
        "triton",  # ends what a killed gateway leaves
    },
    "command_line": {
        *("errors", "program", "configuration", "client", "deploy", "text", "building", "places"),
        "openai_stream",
    },
    "bench": {
        *("errors", "program", "manifest", "client", "text", "command_line", "atomic_file", "configuration"),
        *("building", "executor", "speculation", "time_left", "available_resources", "engine_memory"),
        *("places", "version"),
    },
    "validation": {
        *("errors", "program", "client", "command_line", "bench", "atomic_file", "deploy"),
        *("building", "time_left", "openai_stream"),
    },
    "canary": {
        *("errors", "program", "manifest", "deploy", "router", "bench"),
        *("atomic_file", "available_resources", "configuration", "engine_memory"),
        *("socket_path", "web_application", "places"),
    },
    "upstreams": {
        *(
            "web_application",
            "errors",
            "program",
            "configuration",
            "deploy",
            "time_limit",
            "openai_stream",
            "router",
            "canary",
            "client",
            "kserve_stream",
            "wire",
        ),
        "front_door",  # who may ask, and how bytes are delivered
        "validation",  # the client of OpenAI's API
    },
    "demo": {
        *("errors", "program", "client", "text", "deploy", "command_line", "bench", "atomic_file"),
        *("building", "validation"),
    },
}

# Third-party packages that only some modules may import, at any depth.
RESERVED: dict[str, tuple[str, ...]] = {
    "torch": (
        "build/quantization/modelopt_worker.py",
        "build/reference.py",
        "tests/",
    ),
    "transformers": (
        "build/quantization/modelopt_worker.py",
        "build/reference.py",
        "tests/",
    ),
    "modelopt": ("build/quantization/modelopt_worker.py", "tests/"),
    "ik_llama_cpp": ("benchmarks/peers/ik_llama_server.py",),
    "xllamacpp": ("benchmarks/peers/llama_cpp_server.py",),
    "openvino_genai": ("benchmarks/lossless/genai_answers.py",),
    "openvino": (
        "build/",
        "benchmarks/",
        "pipelines/executor/",
        "pipelines/bench/",
        "pipelines/deploy/",
        "tests/",
    ),
    "backports": ("pipelines/front_door/requests/", "tests/"),
    "cryptography": ("build/package.py", "tests/"),
    "kubernetes_validate": ("tests/",),
    "promql_parser": ("tests/",),
    "scipy": ("pipelines/validation/", "pipelines/bench/", "pipelines/canary/", "tests/"),
    "jinja2": ("pipelines/validation/report.py", "pipelines/text/chat_rendering.py", "tests/"),
    "tritonclient": (
        "pipelines/client/",
        "pipelines/triton/gateway/",
        "pipelines/upstreams/fleet/",
        "pipelines/triton/tensorrt_llm/server_calls.py",
        "tests/",
    ),
    "aiohttp": (
        *("pipelines/triton/", "pipelines/front_door/", "pipelines/upstreams/"),
        *("pipelines/canary/gates.py", "pipelines/web_application.py", "tests/"),
    ),
    "prometheus_client": (
        "pipelines/triton/gateway/metrics.py",
        "pipelines/front_door/observing/",
        "pipelines/router/metrics.py",
        "pipelines/upstreams/fleet/fleet.py",
        "pipelines/upstreams/metrics.py",
        "docs/code_tables/metrics.py",
        "tests/",
    ),
    "triton_python_backend_utils": ("model_repository/",),
}

SMALL_FILE_LINES = 60
SMALL_FILES_WITH_ONE_IMPORTER = 3  # on the way to none; lower it with every step


def _sources(*folders: str) -> list[str]:
    return [path for path in tracked_files() if path.endswith(".py") and path.startswith(folders)]


@functools.cache
def _imports(path: str) -> tuple[str, ...]:
    """Return the absolute dotted names that a file imports, wherever the statement stands."""
    return tuple(_find_imports(path))


def _find_imports(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((REPOSITORY_ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; spell it out"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _part(module: str) -> str:
    """Return the part of a module: ``pipelines.executor.step`` -> ``executor``."""
    return module.split(".")[1]


def test_build_imports_of_pipelines_only_what_both_halves_share() -> None:
    shared = tuple(
        f"pipelines.{name}"
        for name in (
            *("errors", "manifest", "program", "atomic_file", "available_resources", "engine_memory"),
            *(
                "configuration",
                "deploy.triton.launch",
                "deploy.triton.pair_record",
                "places",
                "socket_path",
                "speculation.sampling.params",  # the ranges that requests have, too
                "time_left",
                "text.vocabulary",
            ),
            "wire",  # the tensors of requests and answers
        )
    )
    wrong = [
        (path, name)
        for path in _sources("build/")
        for name in _imports(path)
        if name.startswith("pipelines") and not name.startswith(shared)
    ]
    assert [pair for pair in wrong if pair[1] != "pipelines"] == []


@pytest.mark.parametrize(
    ("folders", "forbidden"),
    [
        (("build/", "pipelines/", "model_repository/"), ("benchmarks", "tools", "docs")),
        (("pipelines/", "model_repository/"), ("build",)),
        (("build/", "pipelines/", "model_repository/", "benchmarks/", "tools/", "docs/"), ("tests",)),
    ],
)
def test_imports_lead_from_the_edge_to_the_core(folders: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    assert [
        (path, name)
        for path in _sources(*folders)
        for name in _imports(path)
        if name.split(".")[0] in forbidden
    ] == []


def test_parts_of_pipelines_import_in_one_direction() -> None:
    wrong = []
    for path in _sources("pipelines/"):
        if path == "pipelines/__init__.py":
            continue
        part = Path(path).parts[1].removesuffix(".py")
        assert part in MAY_IMPORT, f"{path}: new part {part!r}; decide its place in MAY_IMPORT"
        for name in _imports(path):
            if name.startswith("pipelines.") and _part(name) not in {part, *MAY_IMPORT[part]}:
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_the_allowed_imports_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [part for part, below in MAY_IMPORT.items() if part not in order and below <= set(order)]
        assert ready, f"cycle among {set(MAY_IMPORT) - set(order)}"
        order += ready


def test_heavy_packages_stay_where_they_belong() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in _sources("build/", "pipelines/", "benchmarks/", "tools/", "model_repository/", "tests/")
        for name in set(_imports(path))
        if name in RESERVED and not path.startswith(RESERVED[name])
    ]
    assert wrong == []


def _import_with_blocked(modules: list[str], blocked: list[str]) -> None:
    """Import modules in a new interpreter in which the blocked packages cannot be imported."""
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def _module_names(*folders: str, leaving_out: tuple[str, ...] = ()) -> list[str]:
    paths = [path for path in _sources(*folders) if not path.startswith(leaving_out or ("//",))]
    names = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]
    return [name for name in names if not name.endswith("__main__")]


def test_the_loop_needs_neither_triton_nor_an_engine_nor_torch() -> None:
    modules = _module_names("pipelines/speculation/")
    assert "pipelines.speculation.loop" in modules
    others = [f"pipelines.{part}" for part in MAY_IMPORT if part not in ("speculation", "errors")]
    packages = ["tritonclient", "triton_python_backend_utils", "openvino", "torch", "tokenizers"]
    _import_with_blocked(modules, ["build", *others, *packages, "yaml", "httpx"])


def test_everything_that_the_demo_runs_imports_without_torch() -> None:
    alone = ("build/quantization/modelopt_worker.py",)
    modules = _module_names("build/", "pipelines/", leaving_out=alone)
    assert len(modules) > 20
    _import_with_blocked(modules, ["torch", "transformers", "modelopt", "safetensors", "tests"])


def test_the_gateway_starts_triton_before_it_imports_what_takes_long() -> None:
    _import_with_blocked(["pipelines.triton.gateway.__main__"], ["aiohttp", "grpc", "numpy", "tritonclient"])
    _import_with_blocked(["pipelines.triton.supervision.guard"], ["aiohttp", "grpc", "numpy", "pydantic"])


def test_ruff_checks_every_source_also_in_build() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files"]
    listed = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=True).stdout
    shown = {Path(line).relative_to(REPOSITORY_ROOT).as_posix() for line in listed.splitlines()}
    assert set(_sources("build/", "pipelines/", "benchmarks/", "tools/", "tests/")) <= shown


def test_git_does_not_ignore_build_even_where_a_global_list_does(tmp_path: Path) -> None:
    (tmp_path / "ignore").write_text("build/\n")
    command = ["git", "-c", f"core.excludesFile={tmp_path / 'ignore'}", "check-ignore", "--no-index"]
    done = subprocess.run(
        [*command, "build/recipe.py"], cwd=REPOSITORY_ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_no_part_is_above_its_budget() -> None:
    wrong = [
        f"{part.name}: {sum(sizes):,} code lines; see `make size`"
        for part, sizes in size.measure().items()
        if sum(sizes) > part.budget
    ]
    assert wrong == []


def test_tests_are_within_their_budget() -> None:
    assert size.count_test_lines() <= size.TEST_LINES


def test_parts_name_files_that_exist() -> None:
    paths = [path for part in size.PARTS for path in part.paths]
    assert [path for path in paths if not (REPOSITORY_ROOT / path).exists()] == []


def test_a_small_file_with_one_importer_is_part_of_it() -> None:
    sources = _sources("build/", "pipelines/", "benchmarks/", "tools/", "docs/", "model_repository/")
    importers = Counter(name for path in sources for name in set(_imports(path)))
    small = [
        path
        for path in sources
        if not path.endswith(("__init__.py", "__main__.py"))
        and importers[path.removesuffix(".py").replace("/", ".")] == 1
        and len((REPOSITORY_ROOT / path).read_text(encoding="utf-8").splitlines()) < SMALL_FILE_LINES
    ]
    assert len(small) <= SMALL_FILES_WITH_ONE_IMPORTER, f"one of these belongs into its importer: {small}"


def test_the_quarantine_names_tests_that_exist() -> None:
    for path, name in (test.split("::") for test in QUARANTINE):
        assert f"def {name}(" in (REPOSITORY_ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"


def test_each_breakage_stands_in_one_place_and_names_tests_that_exist() -> None:
    """``python -m tests.breakages`` takes an hour, so one that has rotted would go unseen for long."""
    sources = read_sources(REPOSITORY_ROOT)
    assert [each.name for each in read_breakages() if place_of(each, sources) is None] == []
    named = {name for each in read_breakages() for name in each.tests}
    assert [name for name in sorted(named) if not find_tests(name, REPOSITORY_ROOT)] == []


def test_no_path_of_a_machine_and_no_package_host_is_committed() -> None:
    machine = "|".join(
        [
            "/ro" + "ot/",
            "/ho" + "me/[a-z]",
            "/Us" + "ers/[a-z]",
            "/wo" + "rk/",
            "/tm" + "p/x",
            r"\.pye" + "nv",
        ]
    )
    hosts = "|".join(["pypi" + r"\.org", "pythonhos" + "ted", "pytorch" + r"\.org", "index" + "-url"])
    pattern = re.compile(f"{machine}|{hosts}")
    wrong = []
    for path in tracked_files():
        try:
            text = (REPOSITORY_ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if "/prompts/" not in path:  # quoted from the standard library's own source
            wrong += [f"{path}: {found.group()}" for found in pattern.finditer(text)]
    assert wrong == []
