"""Tests that ``make docs`` refuses what the site's builder does not notice."""

from __future__ import annotations

from pathlib import Path

from docs.check_site import faults


def _site(root: Path, nav: str, pages: dict[str, str], built: dict[str, str]) -> list[str]:
    (root / "zensical.toml").write_text(nav, encoding="utf-8")
    for folder, files in (("docs", pages), ("site", built)):
        for name, text in files.items():
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return list(faults(root))


def test_a_whole_site_has_no_fault(tmp_path: Path) -> None:
    links = '<a href="a/b.html#top">b</a> <img src="p.svg"> <a href="https://example.org/x">out</a>'
    up = '<a href="../index.html">up</a> <a href="..">up</a> <a href="#here">here</a>'
    built = {"index.html": links, "a/b.html": up, "p.svg": ""}
    nav = '{ "Home" = "index.md" }, { "B" = "a/b.md" }'
    assert _site(tmp_path, nav, {"index.md": "", "a/b.md": ""}, built) == []


def test_missing_pages_forgotten_pages_and_missing_pictures_are_named(tmp_path: Path) -> None:
    nav = '{ "Home" = "index.md" }, { "B" = "a/b.md" }'
    wrong = _site(tmp_path, nav, {"index.md": "", "c.md": ""}, {"index.html": '<img src="nope.svg">'})
    assert wrong == [
        "zensical.toml: a/b.md does not exist",
        "docs/c.md: not in the navigation of zensical.toml",
        "index.html: nope.svg leads nowhere",
    ]


def test_a_list_that_the_site_would_show_as_text_is_named(tmp_path: Path) -> None:
    good = "# Title\n- a\n  more of a\n- b\n\n1. c\n\n```\nx\n- y\n```\n"
    nav = '{ "Home" = "index.md" }'
    assert _site(tmp_path, nav, {"index.md": good}, {"index.html": ""}) == []
    wrong = "Three:\n- a\n\n```\n```\n1. b\n"
    assert _site(tmp_path, nav, {"index.md": wrong}, {"index.html": ""}) == [
        "docs/index.md:2: no empty line before the list",
        "docs/index.md:6: no empty line before the list",
    ]
