"""Counts the project's code lines by part and compares them with each part's budget.

A code line has code on it: blank lines, comments and docstrings do not count. Tests do not count either, and
parts in other languages than Python are counted apart.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Part:
    """Holds what one part of the project may cost.

    Attributes:
        name: What people call it.
        budget: The most code lines that it may have.
        paths: Files, and folders that end in a slash. A file belongs to the part with the longest path.
        suffixes: Endings of its files.
    """

    name: str
    budget: int
    paths: tuple[str, ...]
    suffixes: tuple[str, ...] = (".py",)


# Ceilings with about 3 % of room. The commit that raises one says what its lines buy.
PARTS = (
    Part("speculation", 1_560, ("pipelines/speculation/",)),
    # More than before buys drafts in one pass.
    Part("executor", 2_520, ("pipelines/executor/",)),
    # More than 1,000 buys guides tried in a process with limits, chats rendered in another, and tokens of two
    # vocabularies.
    Part("text", 1_435, ("pipelines/text/",)),
    Part("wire", 700, ("pipelines/wire/",)),
    # Above 2,600: several servers behind one door, with DNS, roll-outs and streams that go on elsewhere.
    Part("router", 3_190, ("pipelines/router/", "pipelines/upstreams/")),
    # Above 2,700: KServe over HTTP and gRPC with every request checked, and the supervision of two processes.
    Part("triton", 3_370, ("pipelines/triton/", "model_repository/")),
    # Within 4,400: OpenAI's two APIs and Anthropic's, and calls of tools in seven styles.
    Part("front door", 4_465, ("pipelines/front_door/",)),
    # More than 450 buys a gRPC stream: tritonclient's cannot be cancelled, nor tell its last response.
    Part("client", 505, ("pipelines/client/",)),
    # More than before buys ten kinds of questions, rounds that end in time, a verdict in a sentence with an
    # example and its command, and files for CI: `make verify-faults` lists what the judge sees with them.
    # So does the comparison with a checkpoint in float32.
    Part("validation", 4_420, ("pipelines/validation/", "build/reference.py")),
    # Above 2,100: a judge of memory and processor time, which finds the leaks of the drills.
    Part("canary", 2_290, ("pipelines/canary/",)),
    Part("bench", 740, ("pipelines/bench/",)),
    # Above 1,600 by the files that a model serves, read once and checked by their format.
    Part("deploy", 1_720, ("pipelines/deploy/", "build/rendering/", "build/repository.py")),
    # Above 950: `try` with several drafts or none: a table, and the recipe of the fastest.
    Part("command line", 1_220, ("pipelines/command_line/", "pipelines/demo/", "pipelines/__main__.py")),
    # More than before buys installed packages (where they write, and which commit they are) and one function
    # that serves every HTTP application.
    Part("shared modules", 1_240, ("pipelines/",)),
    # Above 6,600: mixtures of experts, hybrid networks, and drafts with mask tokens.
    Part("build", 6_820, ("build/",)),
    Part(
        "GPU track",
        3_150,
        (
            "build/tensorrt_llm/",
            "build/quantization/",
            "build/quantize.py",
            "build/rendering/tensorrt_llm_repository.py",
            "pipelines/triton/tensorrt_llm/",
            "pipelines/deploy/gpu_doctor.py",
            "pipelines/deploy/gpus.py",
            "pipelines/deploy/triton/nvidia_triton.py",
        ),
    ),
    # Which engines answer the same with speculation, the table of a page that others may repeat;
    # and ik_llama.cpp, which has no server.
    Part("benchmarks", 1_550, ("benchmarks/",)),
    Part("docs generators", 370, ("docs/",)),
    # More than before buys the wheel of the server, programs beside the client in the small one, and the
    # configuration of the image.
    Part("tools", 585, ("tools/",)),
    # The image without a registry, and the command of a checkout.
    Part("shell scripts", 45, ("tools/",), (".sh",)),
    Part("C++ operators", 2_300, ("build/operators/",), (".cpp", ".h")),
    Part("web pages", 670, ("pipelines/", "docs/"), (".html", ".js", ".css")),
)

TEST_LINES = 67_900
"""The most lines of tests, with blank lines and comments."""


_COMMENT = re.compile(r"/\*.*?\*/|<!--.*?-->|^\s*//[^\n]*", re.DOTALL | re.MULTILINE)
"""In C++ and on web pages. Behind code, it makes no line."""


def count_code_lines(source: str, suffix: str = ".py") -> int:
    """Return how many lines of a file hold code.

    Args:
        source: The text of the file.
        suffix: Its ending.
    """
    if suffix == ".sh":
        return sum(line.strip() != "" and not line.lstrip().startswith("#") for line in source.splitlines())
    if suffix != ".py":
        return sum(map(bool, map(str.strip, _COMMENT.sub("", source).splitlines())))
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            documented.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT and token.string.strip():
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def part_of(path: str) -> Part:
    """Return the part that a file belongs to.

    Raises:
        LookupError: No part names the file or a folder above it.
    """
    parts = [part for part in PARTS if path.endswith(part.suffixes)]
    found = [(prefix, part) for part in parts for prefix in part.paths if path.startswith(prefix)]
    if not found:
        raise LookupError(f"{path} belongs to no part; add it to PARTS in tools/size.py")
    return max(found, key=lambda pair: len(pair[0]))[1]


def measure() -> dict[Part, list[int]]:
    """Return the code lines of each tracked file outside tests, by part."""
    sizes: dict[Part, list[int]] = {part: [] for part in PARTS}
    for path, source in _sources():
        if not path.startswith("tests/"):
            sizes[part_of(path)].append(count_code_lines(source, Path(path).suffix))
    return sizes


def count_test_lines() -> int:
    """Return the lines of all files of tests, with blank lines and comments."""
    return sum(len(source.splitlines()) for path, source in _sources() if path.startswith("tests/"))


def _sources() -> Iterator[tuple[str, str]]:
    suffixes = {suffix for part in PARTS for suffix in part.suffixes}
    command = ["git", "ls-files", *(f"*{suffix}" for suffix in suffixes)]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.splitlines():
        if (_ROOT / path).exists():
            yield path, (_ROOT / path).read_text(encoding="utf-8")


def main() -> None:
    """Print the files, code lines and budget of each part, and the lines of tests."""
    sizes = measure()
    print(f"{'part':<16} {'files':>6} {'lines':>7} {'budget':>7}")
    for part, lines in sizes.items():
        above = f"  {sum(lines) - part.budget:+,}" if sum(lines) > part.budget else ""
        print(f"{part.name:<16} {len(lines):>6} {sum(lines):>7,} {part.budget:>7,}{above}")
    python = {part: lines for part, lines in sizes.items() if ".py" in part.suffixes}
    files, total = (sum(map(count, python.values())) for count in (len, sum))
    print(f"{'Python in all':<16} {files:>6} {total:>7,} {sum(part.budget for part in python):>7,}")
    print(f"{'tests, raw':<16} {'':>6} {count_test_lines():>7,} {TEST_LINES:>7,}")


if __name__ == "__main__":
    main()
