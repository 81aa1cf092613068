"""Tests of the bench's page and document."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pipelines.bench.report.document import as_document
from pipelines.bench.report.html_page import as_html
from pipelines.bench.report.text import as_text
from pipelines.bench.reporting.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Labels,
    Point,
    Series,
    bar_chart,
    line_chart,
)
from tests.unit.bench.answers import ARMS, results

NO_CLOSING_TAG = {"meta", "br", "hr"}


class Page(HTMLParser):
    """An HTML parser that collects tags and fails on one that is unclosed or closes another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in NO_CLOSING_TAG:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def plots(text: str) -> dict[str, ElementTree.Element]:
    """Return title -> plot; an XML parser reads them, because it refuses malformed markup."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    return {each.attrib["aria-label"]: each for each in found}


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere() -> None:
    text = as_html(results())
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & {tag for tag, _ in page.tags}
    assert not {"src", "href", "srcset"} & {name for _, attributes in page.tags for name in attributes}
    assert "url(" not in text and "@import" not in text and "http" not in text


def test_every_plot_has_data_of_every_arm_inside_its_frame() -> None:
    drawn = plots(as_html(results()))
    assert {re.sub(",.*", "", title) for title in drawn} == {
        "Output tokens per second",
        "Ratio to the target alone",
        "End-to-end latency",
        "Rounds by accepted draft tokens",
        "Rounds by draft length",
        "Goodput",
        "Mean latency of the target alone over the arm's",
    }
    for title, plot in drawn.items():
        groups = [group for group in plot.iter("g") if "series" in group.attrib["class"]]
        assert len(groups) >= (2 if "draft length" in title else len(ARMS) - 1), title
        for group in groups:
            marks = [*group.iter("polyline"), *group.iter("rect"), *group.iter("circle")]
            places = [pair for mark in marks for pair in _places(mark)]
            assert places and all(_places(mark) for mark in marks), title
            for x, y in places:
                assert LEFT <= x <= WIDTH - RIGHT + 0.1, title
                assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1, title


def _places(mark: ElementTree.Element) -> list[tuple[float, float]]:
    given = mark.attrib
    if mark.tag == "polyline":
        return [tuple(map(float, pair.split(","))) for pair in given["points"].split()]  # type: ignore[misc]
    if mark.tag == "circle":
        return [(float(given["cx"]), float(given["cy"]))]
    assert float(given["height"]) >= 0
    return [(float(given["x"]), float(given["y"]))]


def test_the_ratio_plot_has_both_lines_to_compare_with() -> None:
    plot = plots(as_html(results()))["Ratio to the target alone"]
    rules = [line.findtext("title") for line in plot.iter("line") if line.attrib["class"] == "rule"]
    assert rules == ["0.97", "1"]
    assert [line for line in plot.iter("line") if line.attrib["class"] == "whisker"]


def test_text_from_outside_is_escaped() -> None:
    text = as_html(results(recipe="<script>alert(1)</script>"))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_answers_that_differ_are_said_first() -> None:
    text = as_html(replace(results(), num_different=3))
    assert text.index("3 answers differ") < text.index("Adaptive draft length")
    assert "Every answer was the target" not in text


def test_a_line_chart_puts_values_where_they_belong() -> None:
    points = (Point(1, 0.0, 0.0, 0.0), Point(4, 2.0, 1.0, 4.0), Point(16, 4.0, 4.0, 4.0))
    chart = line_chart(
        Labels("t", "x", "y"), [Series("s", 0, points)], [1, 4, 16], rules=[1.0], is_log_x=True
    )
    first, middle, last = chart.series[0].marks
    assert (first.x, first.y) == (LEFT, HEIGHT - BOTTOM)
    assert (last.x, last.y) == (WIDTH - RIGHT, TOP)
    # 4 is half way from 1 to 16 on a logarithmic scale
    assert middle.x == pytest.approx((first.x + last.x) / 2)
    assert middle.y == pytest.approx((first.y + last.y) / 2)
    assert middle.high < middle.y < middle.low  # upwards is smaller in SVG
    assert [tick.text for tick in chart.y_ticks] == ["0", "1", "2", "3", "4"]
    assert chart.rules[0].place == pytest.approx(chart.y_ticks[1].place)


def test_bars_of_a_group_stand_side_by_side() -> None:
    chart = bar_chart(Labels("t", "x", "y"), [("a", 0, [0.5, 1.0]), ("b", 1, [0.25])])
    a, b = chart.series
    assert a.marks[0].x + chart.bar_width == pytest.approx(b.marks[0].x)
    assert a.marks[1].y == pytest.approx(TOP)
    assert HEIGHT - BOTTOM - a.marks[0].y == pytest.approx((HEIGHT - BOTTOM - TOP) / 2)
    assert len(chart.x_ticks) == 2


def test_the_document_is_json_with_every_arm_of_every_cell() -> None:
    document = json.loads(json.dumps(as_document(results()), allow_nan=False))
    assert [cell["load"]["kind"] for cell in document["cells"]] == ["closed", "closed", "open"]
    for cell in document["cells"]:
        assert [arm["arm"] for arm in cell["arms"]] == ["target alone", "K=2", "K=4", "adaptive"]
        assert cell["adaptive_compared"][0]["to"] == "target alone"
        assert {each["verdict"] for each in cell["adaptive_compared"]} == {"fail"}
    k4 = next(each for each in document["crossovers"] if each["arm"] == "K=4")
    assert 1 < k4["num_at_once"] < 2
    assert document["domain_shift"][0]["rounds_to_follow"] == [3, None]


def test_the_text_names_every_verdict_that_is_not_pass_and_every_crossover() -> None:
    text = as_text(results())
    assert "0 pass, 0 inconclusive, 6 fail" in text
    assert "fail: code, 1 concurrent: 0.50 (0.50..0.50) times target alone" in text
    assert "code, K=2: pays throughout" in text
    assert "after 3, never rounds" in text
