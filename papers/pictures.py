"""Pictures of charts as SVG. Only this module imports matplotlib, which may be missing."""

import io
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.page.palette import LINES, SURFACES

if TYPE_CHECKING:
    from papers.page import Chart, Series

_STROKES = ("solid", "dashed", "dotted")
_OVER = (0, (3, 3))
"""Stroke of a line that would hide another: gaps as long as dashes."""
_HIDDEN = 0.01
"""A line hides another if they are nowhere further apart than this share of the chart's height."""
_LONG_NAME = 22
"""Letters of a line's name from which three names do not fit beside each other."""
_DIGEST = re.compile(r"data ([0-9a-f]{16})")


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def drawn_from(picture: Path) -> str | None:
    """Return the digest of the data that a picture shows; None without a picture."""
    try:
        found = _DIGEST.search(picture.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return found[1] if found else None


def draw(chart: "Chart") -> str:
    """Return a chart as SVG with the digest of its data; the same data give the same text."""
    matplotlib = import_module("matplotlib")
    figures = import_module("matplotlib.figure")
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": chart.name,
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.edgecolor": SURFACES["quiet"][0],
        "axes.labelcolor": SURFACES["ink"][0],
        "text.color": SURFACES["ink"][0],
        "xtick.color": SURFACES["quiet"][0],
        "ytick.color": SURFACES["quiet"][0],
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure = figures.Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for place, series in enumerate(chart.series):
            over = any(_hides(series, other, _height(chart)) for other in chart.series[:place])
            _add(axes, series, place if series.place is None else series.place, chart.style, over)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_title(chart.title, fontsize=11, loc="left")
        axes.grid(visible=True, color=SURFACES["grid"][0], linewidth=0.8)
        axes.set_axisbelow(True)
        if len(chart.series) > 1:
            handles, labels = axes.get_legend_handles_labels()
            # Three columns of longer names are wider than the picture.
            columns = 3 if max(map(len, labels)) <= _LONG_NAME else 2
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        buffer = io.StringIO()
        about = {"Date": None, "Creator": None, "Description": f"data {chart.digest}"}
        figure.savefig(buffer, format="svg", metadata=about)
    # A hundredth of a point is finer than any screen; more digits would be most of the file.
    return re.sub(r"(\d\.\d\d)\d+", r"\1", buffer.getvalue())


def _height(chart: "Chart") -> float:
    values = [y for series in chart.series for y in series.y]
    return max(values, default=0.0) - min(values, default=0.0)


def _hides(series: "Series", other: "Series", height: float) -> bool:
    """True if a line would cover another over its whole length."""
    if list(series.x) != list(other.x):
        return False
    return all(abs(y - below) <= _HIDDEN * height for y, below in zip(series.y, other.y, strict=True))


def _add(axes: Any, series: "Series", place: int, style: str, over: bool) -> None:
    colour = LINES[place % len(LINES)][0]
    stroke = _OVER if over else _STROKES[place // len(LINES) % len(_STROKES)]
    bounded = [
        (x, y, low, high)
        for x, y, low, high in zip(series.x, series.y, series.low, series.high, strict=False)
        if low is not None and high is not None
    ]
    if style == "points":
        axes.scatter(series.x, series.y, s=12, color=colour, alpha=0.7, linewidths=0, label=series.label)
        return
    marker = "o" if style == "both" else None
    axes.plot(
        series.x, series.y, color=colour, linestyle=stroke, linewidth=1.6, marker=marker, ms=4, label=series.label
    )
    if bounded and style == "both":
        x, y, low, high = zip(*bounded, strict=True)
        below, above = ([abs(a - b) for a, b in zip(y, edge, strict=True)] for edge in (low, high))
        axes.errorbar(x, y, yerr=[below, above], color=colour, linestyle="none", capsize=3, linewidth=1.0)
    elif bounded:
        x, _, low, high = zip(*bounded, strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
