"""Checks the built site beyond what Zensical does: ``python -m docs.check_site``, or ``make docs``.

Zensical 0.0.73 does not notice a page of the navigation that does not exist, a page that the navigation
leaves out, a picture that is missing, or a list that it shows as running text because no empty line precedes
it (GitHub shows a list). The standard library is enough, so this runs in the site's
environment.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
_LIST = re.compile(r"(-|\d+\.) ")
_MAY_PRECEDE_A_LIST = re.compile(r"(-|\d+\.) |  |#|<!--")


def faults(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong.

    Args:
        root: Folder with ``zensical.toml``, ``docs/`` and the built ``site/``.
    """
    named = set(re.findall(r'= "([\w/-]+\.md)"', (root / "zensical.toml").read_text(encoding="utf-8")))
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    yield from (f"zensical.toml: {page} does not exist" for page in sorted(named - pages))
    yield from (f"docs/{page}: not in the navigation of zensical.toml" for page in sorted(pages - named))
    for page in sorted(pages):
        yield from (
            f"docs/{page}:{line}: no empty line before the list" for line in _joined_lists(root, page)
        )
    site = root / "site"
    for file in sorted(site.rglob("*.html")):
        if file.name != "404.html":  # its addresses are absolute
            yield from _dead_links(file, site)


def _joined_lists(root: Path, page: str) -> Iterator[int]:
    before, is_code = "", False
    for number, line in enumerate((root / "docs" / page).read_text(encoding="utf-8").splitlines(), 1):
        begins_code = line.startswith("```")
        if not is_code and _LIST.match(line) and before and not _MAY_PRECEDE_A_LIST.match(before):
            yield number
        is_code ^= begins_code
        before = line


def _dead_links(file: Path, site: Path) -> Iterator[str]:
    for address in _addresses(file):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        target = (file.parent / unquote(parts.path)).resolve()
        if not (target.is_file() or (target / "index.html").is_file()):
            yield f"{file.relative_to(site)}: {address} leads nowhere"


def _addresses(file: Path) -> list[str]:
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attrs if name in ("href", "src") and value)

    Reader().feed(file.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Print every fault; returns 1 if there is one."""
    wrong = list(faults())
    print("\n".join(wrong) or "every page is in the navigation and every link leads somewhere")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
