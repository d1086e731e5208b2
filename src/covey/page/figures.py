"""Charts and figures of a page, and the parts that all charts share."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.arrays import FloatArray
from covey.job.comparison.statistics import half_interval
from covey.page import palette
from covey.page.run_data import Line


@dataclass(frozen=True)
class PlotlyChart:
    """One drawing: traces and layout as plotly.js takes them, colours as CSS variables."""

    alt: str
    """Text for readers who cannot see the chart."""
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 340
    title: str = ""
    """Heading above the chart, if a figure has several."""


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a legend; `line` is the place of the line that it shows or hides."""

    label: str
    colour: str
    stroke: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Figure:
    """Charts under one heading, with a caption and a legend."""

    name: str
    heading: str
    caption: str
    charts: list[PlotlyChart]
    keys: list[LegendEntry] = field(default_factory=list)
    wide: bool = False
    """Takes the whole width of the page."""


def keys_of(lines: Sequence[Line]) -> list[LegendEntry]:
    """Return the legend of `lines`, one entry per colour."""
    first = {line.place: line for line in reversed(lines)}
    return [
        LegendEntry(
            first[place].label,
            palette.line(place),
            palette.STROKES[palette.stroke(place)],
            place,
        )
        for place in sorted(first)
    ]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title."""
    return {"title": {"text": title}, **more}


def rounded(values: Sequence[float] | FloatArray) -> list[float]:
    """Round to six significant digits: more than a chart can show, in a fifth of the bytes."""
    return [float(f"{value:.6g}") for value in values]


def span(values: Sequence[float], low: float = 0.0, high: float = 100.0) -> list[float]:
    """Return an axis range around `values` that stays between `low` and `high`."""
    bottom, top = min(values), max(values)
    margin = max(1.0, 0.05 * (top - bottom))
    return rounded([max(low, bottom - margin), min(high + 0.5, top + margin)])


def spread(values: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return the band around the mean of `values` `[seeds, points]`.

    It is the 95 % interval (Student's t); of two seeds, the band between them; of one, None.
    """
    seeds = len(values)
    if seeds < 2:
        return None
    if seeds == 2:
        return values.min(axis=0), values.max(axis=0)
    mean, half = values.mean(axis=0), half_interval(values)
    return mean - half, mean + half


def seeds_in_words(lines: Sequence[Line]) -> str:
    """Say over how many seeds lines are averaged."""
    seeds = sorted({len(line.runs) for line in lines})
    if seeds == [1]:
        return "One seed"
    return f"Mean over {' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds"


def band_in_words(lines: Sequence[Line], drawn: bool) -> str:
    """Say what a band shows."""
    seeds = {len(line.runs) for line in lines}
    if seeds == {1}:
        return "no interval"
    if not drawn:
        return "the intervals are in the table of results, since bands would hide each other here"
    return "the band joins the two" if seeds == {2} else "the band is the 95 % interval"


def plain(text: str) -> str:
    """Escape text, so that plotly shows it unchanged."""
    return html.escape(text, quote=False)
