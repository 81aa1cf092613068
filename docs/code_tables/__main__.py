"""Writes the tables and pictures of the pages that show the code: ``python -m docs.code_tables``.

A table stands between ``<!-- code:NAME -->`` and ``<!-- /code -->``. ``make docs`` runs this first.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docs.code_tables.metrics import metrics
from docs.code_tables.recipe_keys import recipe_keys
from docs.pictures.charts import beside_peers
from pipelines.__main__ import PROGRAMS
from pipelines.errors import DraftproofError
from pipelines.front_door.requests.fields import IDLE_FIELDS
from pipelines.wire.fields import TEXT_INPUTS, InputTensor
from pipelines.wire.request import CompletionRequest

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(<!-- code:([a-z-]+) -->\n).*?(<!-- /code -->)", re.DOTALL)


def commands() -> str:
    """Return a table of the subcommands of ``draftproof``."""
    rows = (f"| `draftproof {name}` | {_sentence(text)} |" for name, (_, text) in PROGRAMS.items())
    return "\n".join(["| Command | What it does |", "|---|---|", *rows])


def errors() -> str:
    """Return one row for each class of the tree of errors, the base class first."""
    lines = ["| Code | Class | Raised when |", "|---|---|---|"]
    for error in _tree(DraftproofError):
        first_paragraph = " ".join((error.__doc__ or "").strip().split("\n\n")[0].split()).replace("``", "`")
        lines.append(f"| `draftproof/{error.code}` | `{error.__name__}` | {first_paragraph} |")
    return "\n".join(lines)


def _tree(root: type[DraftproofError]) -> Iterator[type[DraftproofError]]:
    if root.__module__ == DraftproofError.__module__:
        yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def request_fields() -> str:
    """Return one row for each input of the text models."""
    lines = ["| Input | Type | Values | Default | Effect |", "|---|---|---|---|---|"]
    defaults = {field.name: field.default for field in dataclasses.fields(CompletionRequest)}
    lines += [_row(tensor, defaults.get(tensor.field, False)) for tensor in TEXT_INPUTS.values()]
    return "\n".join(lines)


def idle_fields() -> str:
    """Return one row for each group of fields of OpenAI's API that mean nothing here."""
    lines = ["| Field | Accepted | Why |", "|---|---|---|"]
    for idle in IDLE_FIELDS:
        names = ", ".join(f"`{name}`" for name in idle.names)
        values = ", ".join(f"`{json.dumps(value)}`" for value in idle.accepted or ()) or "nothing"
        lines.append(f"| {names} | {'all' if idle.accepted is None else values} | {idle.reason} |")
    return "\n".join(lines)


def _row(tensor: InputTensor, default: Any) -> str:
    kind = ("STRING" if tensor.datatype == "BYTES" else tensor.datatype) + "[]" * tensor.is_list
    if tensor.is_required:
        shown = "required"
    elif tensor.datatype == "BOOL":
        shown = str(bool(default)).lower()
    else:
        shown = "none" if default in (None, (), "") else f"{default:g}"
    effect = tensor.effect + "; not in `ensemble`" * (not tensor.in_ensemble)
    cells = (f"`{tensor.name}`", kind, tensor.values, shown, effect)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentence(words: str) -> str:
    return (words[0].upper() + words[1:]).replace("|", "\\|")


def _recorded(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / name).read_text(encoding="utf-8"))


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "errors": errors,
    "idle-fields": idle_fields,
    "metrics": metrics,
    "recipe-keys": recipe_keys,
    "request-fields": request_fields,
}
PICTURES: dict[str, Callable[[], str]] = {
    "beside-peers.svg": lambda: beside_peers(
        "Qwen2.5-Coder 1.5B, Q4_K_M, two cores with AVX2", _recorded("peers-published.json")
    ),
}


def files() -> dict[Path, str]:
    """Return the text of each file that shows the code, as it should be."""
    wanted = {ROOT / "docs" / "pictures" / name: draw() for name, draw in PICTURES.items()}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if _BLOCK.search(text):
            wanted[page] = _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)
    return wanted


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
