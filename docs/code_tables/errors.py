"""Lists every error that Draftproof raises on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.errors import DraftproofError


def errors() -> str:
    """Return one row for each class of the tree, the base class first."""
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
