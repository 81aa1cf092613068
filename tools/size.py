"""Counts the project's code lines by part and compares them with each part's budget.

A code line has code on it: blank lines, comments and docstrings do not count. Tests do not count either.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Part:
    """Holds what one part of the project may cost.

    Attributes:
        name: What people call it.
        budget: The most code lines that it may have.
        paths: Files, and folders that end in a slash. A file belongs to the part with the longest path.
        limit: The most that it may have while it is above its budget; lower it with every step.
    """

    name: str
    budget: int
    paths: tuple[str, ...]
    limit: int = 0

    @property
    def allowed(self) -> int:
        """Return the number of lines above which the test of the architecture fails."""
        return max(self.budget, self.limit)


# A budget is raised by a decision that says what it buys. In all: 38,000.
PARTS = (
    Part(
        "speculation",
        budget=1_850,
        paths=("pipelines/speculation/",),
        limit=2_150,
    ),
    Part(
        "executor",
        budget=1_500,
        paths=("pipelines/executor/",),
        limit=1_620,
    ),
    Part(
        "text",
        budget=1_000,
        paths=("pipelines/text/",),
        limit=1_050,
    ),
    Part(
        "wire",
        budget=700,
        paths=("pipelines/wire/",),
        limit=1_000,
    ),
    Part(
        "router",
        budget=2_000,
        paths=(
            "pipelines/router/",
            "pipelines/front_door/fleet/",
            "pipelines/upstreams/",
        ),
        limit=4_000,
    ),
    Part(
        "triton",
        budget=2_550,
        paths=("pipelines/triton/", "model_repository/"),
        limit=4_700,
    ),
    Part(
        "front door",
        budget=3_450,
        paths=("pipelines/front_door/",),
        limit=3_960,
    ),
    Part(
        "client",
        budget=1_000,
        paths=("pipelines/client/",),
        limit=1_350,
    ),
    Part(
        "validation",
        budget=3_500,
        paths=("pipelines/validation/",),
        limit=4_530,
    ),
    Part(
        "canary",
        budget=3_000,
        paths=("pipelines/canary/",),
        limit=3_300,
    ),
    Part(
        "bench",
        budget=1_900,
        paths=("pipelines/bench/",),
        limit=2_100,
    ),
    Part(
        "deploy",
        budget=1_900,
        paths=(
            "pipelines/deploy/",
            "build/rendering/",
            "build/repository.py",
        ),
        limit=2_360,
    ),
    Part(
        "command line",
        budget=800,
        paths=("pipelines/command_line/", "pipelines/demo/"),
        limit=1_110,
    ),
    Part(
        "shared modules",
        budget=650,
        paths=("pipelines/",),
        limit=760,
    ),
    Part(
        "build",
        budget=4_900,
        paths=("build/",),
        limit=5_650,
    ),
    Part(
        "GPU track",
        budget=3_000,
        paths=(
            "build/tensorrt_llm/",
            "build/quantization/",
            "build/quantize.py",
            "build/llm_api.py",
            "build/rendering/tensorrt_llm_repository.py",
            "pipelines/triton/tensorrt_llm/",
            "pipelines/deploy/doctor/gpu_machine.py",
            "pipelines/deploy/doctor/gpus.py",
            "pipelines/deploy/mpi_hosts.py",
            "pipelines/deploy/triton/nvidia_triton.py",
        ),
        limit=3_500,
    ),
    Part(
        "benchmarks",
        budget=2_500,
        paths=("benchmarks/",),
    ),
    Part(
        "docs generators",
        budget=600,
        paths=("docs/",),
    ),
    Part(
        "tools",
        budget=1_200,
        paths=("tools/",),
        limit=1_490,
    ),
)


def count_code_lines(source: str) -> int:
    """Return how many lines of a Python file hold code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            documented.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def part_of(path: str) -> Part:
    """Return the part that a file belongs to.

    Raises:
        LookupError: No part names the file or a folder above it.
    """
    found = [(prefix, part) for part in PARTS for prefix in part.paths if path.startswith(prefix)]
    if not found:
        raise LookupError(f"{path} belongs to no part; add it to PARTS in tools/size.py")
    return max(found, key=lambda pair: len(pair[0]))[1]


def measure() -> dict[Part, list[int]]:
    """Return the code lines of each tracked Python file outside tests, by part."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    sizes: dict[Part, list[int]] = {part: [] for part in PARTS}
    for path in listed.stdout.splitlines():
        if not path.startswith("tests/") and (_ROOT / path).exists():
            sizes[part_of(path)].append(count_code_lines((_ROOT / path).read_text(encoding="utf-8")))
    return sizes


def main() -> None:
    """Print the files, code lines and budget of each part."""
    sizes = measure()
    print(f"{'part':<16} {'files':>6} {'lines':>7} {'budget':>7}")
    for part, lines in sizes.items():
        above = f"  {sum(lines) - part.budget:+,}" if sum(lines) > part.budget else ""
        print(f"{part.name:<16} {len(lines):>6} {sum(lines):>7,} {part.budget:>7,}{above}")
    files = sum(len(lines) for lines in sizes.values())
    total = sum(sum(lines) for lines in sizes.values())
    print(f"{'in all':<16} {files:>6} {total:>7,} {sum(part.budget for part in PARTS):>7,}")


if __name__ == "__main__":
    main()
