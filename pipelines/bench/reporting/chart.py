"""Compute the layout of plots in SVG units; the template only renders it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 430, 250  # of the whole plot, in SVG units
LEFT, TOP, RIGHT, BOTTOM = 52, 10, 8, 42  # margins
_NUM_TICKS = 5


@dataclass(frozen=True)
class Point:
    """A value with its interval.

    Attributes:
        x: Horizontal value.
        y: Vertical value.
        low: Lower end of the interval; equal to ``y`` without one.
        high: Upper end of the interval.
    """

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """A series of points in one colour.

    Attributes:
        name: Name in the legend.
        color: Index of the colour.
        points: Points, at least one.
    """

    name: str
    color: int
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Tick:
    """A tick of an axis: its position in SVG units and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A drawn point: its position in SVG units and its tooltip."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Drawn:
    """A drawn series; bars have the width ``Chart.bar_width``."""

    name: str
    color: int
    marks: tuple[Mark, ...]

    @property
    def path(self) -> str:
        """Corners of the line for ``polyline``."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True)
class Chart:
    """One plot, ready for the template.

    Attributes:
        title: Title above the plot.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        series: Lines or bars.
        x_ticks: Ticks of the horizontal axis.
        y_ticks: Ticks of the vertical axis.
        rules: Horizontal reference lines.
        bar_width: Width of bars in SVG units; 0 draws lines.
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
        """Position of the horizontal axis."""
        return HEIGHT - BOTTOM


@dataclass(frozen=True)
class Labels:
    """Title and axis labels of a plot."""

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
    """Lay out lines with an interval at each point.

    Args:
        labels: Title and axis labels.
        series: Lines.
        x_values: Ticks of the horizontal axis, from its first to its last value.
        rules: Values of horizontal reference lines.
        is_log_x: Whether the horizontal axis is logarithmic.
        has_marks: Whether points are marked, which curves with hundreds of points should not have.
        y_range: Least range of the vertical axis; None for 0 and all values. Values outside it are drawn at
            its edge.
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
    """Lay out groups of bars over whole numbers.

    Args:
        labels: Title and axis labels.
        series: Name, colour and heights; shorter series end early.
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
    """Choose ticks at round values that enclose a range; returns them and a function for positions."""
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
