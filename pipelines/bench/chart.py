"""From numbers to the places on a page where a plot draws them; the template only writes them down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 430, 250  # of the whole plot, in SVG units
LEFT, TOP, RIGHT, BOTTOM = 52, 10, 8, 42  # margins
_NUM_TICKS = 5


@dataclass(frozen=True)
class Point:
    """A value, and where it may lie.

    Attributes:
        x: Horizontal value.
        y: Vertical value.
        low: Lower end of its interval; equal to ``y`` for none.
        high: Upper end.
    """

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """What one colour shows.

    Attributes:
        name: In the legend.
        color: Index among the page's colours.
        points: At least one.
    """

    name: str
    color: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its place in SVG units and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class Mark:
    """One point as it is drawn: places in SVG units, and the words that appear on pointing at it."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Drawn:
    """A series as it is drawn; bars are as wide as ``Chart.bar_width``."""

    name: str
    color: int
    marks: tuple[Mark, ...]

    @property
    def path(self) -> str:
        """Corners of the line, for ``polyline``."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True)
class Chart:
    """One plot, ready for the template.

    Attributes:
        title: Above it.
        x_label: Below it.
        y_label: Beside it.
        series: Lines or bars.
        x_ticks: On the horizontal axis.
        y_ticks: On the vertical axis.
        rules: Horizontal lines to compare with.
        bar_width: SVG units; 0 draws lines.
        has_marks: Whether each point of a line is marked.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Drawn, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    rules: tuple[Tick, ...]
    bar_width: float
    has_marks: bool

    @property
    def bottom(self) -> int:
        """Place of the horizontal axis."""
        return HEIGHT - BOTTOM


@dataclass(frozen=True)
class Labels:
    """The words around a plot."""

    title: str
    x: str
    y: str


def line_chart(
    labels: Labels,
    series: Sequence[Series],
    x_values: Sequence[float],
    *,
    rules: Sequence[float] = (),
    is_log_x: bool = False,
    has_marks: bool = True,
    y_range: tuple[float, float] | None = None,
) -> Chart:
    """Lines with an interval at each point.

    Args:
        labels: Words around it.
        series: Lines.
        x_values: Ticks of the horizontal axis; the first and the last are its ends.
        rules: Values at which a horizontal line is drawn.
        is_log_x: Whether the horizontal axis is logarithmic.
        has_marks: Whether points are marked: not for curves of hundreds of them.
        y_range: What the vertical axis shows at least, None for 0 and all values; what lies beyond it is
            drawn at its edge.
    """
    scale = math.log if is_log_x else float
    first, last = scale(x_values[0]), scale(x_values[-1])
    width = WIDTH - LEFT - RIGHT
    highest = max([*rules, *(point.high for each in series for point in each.points)])
    y_ticks, place_y = _vertical(*(y_range or (0.0, highest)))

    def place_x(value: float) -> float:
        return LEFT + (width / 2 if first == last else width * (scale(value) - first) / (last - first))

    drawn = [
        Drawn(
            each.name,
            each.color,
            tuple(
                Mark(
                    place_x(point.x),
                    place_y(point.y),
                    place_y(point.low),
                    place_y(point.high),
                    f"{each.name}: {point.y:.4g} at {point.x:.4g}",
                )
                for point in each.points
            ),
        )
        for each in series
    ]
    return Chart(
        labels.title,
        labels.x,
        labels.y,
        tuple(drawn),
        tuple(
            Tick(place_x(value), f"{value:.0f}" if value >= 1000 else f"{value:.3g}") for value in x_values
        ),
        y_ticks,
        tuple(Tick(place_y(value), f"{value:g}") for value in rules),
        bar_width=0,
        has_marks=has_marks,
    )


def bar_chart(labels: Labels, series: Sequence[tuple[str, int, Sequence[float]]], first: int = 0) -> Chart:
    """Groups of bars over whole numbers.

    Args:
        labels: Words around it.
        series: Name, colour and heights; the shorter ones end early.
        first: Number of the first group.
    """
    num_groups = max(len(heights) for _, _, heights in series)
    group_width = (WIDTH - LEFT - RIGHT) / num_groups
    bar_width = 0.8 * group_width / len(series)
    y_ticks, place_y = _vertical(0.0, max(height for _, _, heights in series for height in heights))
    drawn = []
    for index, (name, color, heights) in enumerate(series):
        marks = []
        for group, height in enumerate(heights):
            x = LEFT + group_width * (group + 0.1) + bar_width * index
            y = place_y(height)
            marks.append(Mark(x, y, y, y, f"{name}: {height:.3f} at {first + group}"))
        drawn.append(Drawn(name, color, tuple(marks)))
    ticks = [Tick(LEFT + group_width * (group + 0.5), str(first + group)) for group in range(num_groups)]
    return Chart(
        labels.title, labels.x, labels.y, tuple(drawn), tuple(ticks), y_ticks, (), bar_width, has_marks=False
    )


def _vertical(lowest: float, highest: float) -> tuple[tuple[Tick, ...], Callable[[float], float]]:
    """Ticks of an axis at round values that enclose a range, and the place of a value on it."""
    rough = (highest - lowest or 1.0) / _NUM_TICKS
    unit: float = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first = math.floor(round(lowest / step, 9))
    last = max(first + 1, math.ceil(round(highest / step, 9)))
    height = HEIGHT - TOP - BOTTOM

    def place(value: float) -> float:
        share = (value / step - first) / (last - first)
        return TOP + height * (1 - min(1.0, max(0.0, share)))

    ticks = tuple(Tick(place(index * step), f"{index * step:g}") for index in range(first, last + 1))
    return ticks, place
