"""Tests of the bench's text, document and charts."""

from __future__ import annotations

import json

import pytest

from pipelines.bench.report import as_document, as_text
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
from tests.unit.bench.answers import results


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
    assert document["was_stopped"] is False


def test_the_text_names_every_verdict_that_is_not_pass_and_every_crossover() -> None:
    text = as_text(results())
    assert "0 pass, 0 inconclusive, 6 fail" in text
    assert "fail: code, 1 concurrent: 0.50 (0.50..0.50) times target alone" in text
    assert "code, K=2: pays throughout" in text
