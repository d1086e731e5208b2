"""Pages: tables and charts as Markdown, chart data as CSV, and pictures as SVG if matplotlib is installed.

A picture carries the digest of the data it was drawn from; a page shows it only while its data are the same.
"""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from covey.errors import Refusal
from covey.job.comparison.statistics import Estimate
from covey.storage import replace_file
from papers.pictures import can_draw, draw, drawn_from

ROUND = "round"
ACCURACY = "test accuracy (%)"
"""Labels of axes."""


@dataclass(frozen=True)
class Table:
    """A table; its cells are Markdown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


@dataclass(frozen=True)
class Series:
    """One line of a chart, or one kind of points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    """With `high`: a band, or error bars if the chart has markers."""
    high: Sequence[float | None] = ()
    place: int | None = None
    """Index of its colour, to be the same in several charts; by default its position in the chart."""


@dataclass(frozen=True)
class Chart:
    """A picture and the numbers in it."""

    name: str
    """Stem of its files."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    style: Literal["lines", "points", "both"] = "lines"

    def csv(self) -> str:
        """Return the data, one row per point."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["line", self.x_label, self.y_label, "low", "high"])
        for one in self.series:
            nothing: list[float | None] = [None] * len(one.x)
            for row in zip(one.x, one.y, one.low or nothing, one.high or nothing, strict=True):
                writer.writerow([one.label, *("" if value is None else f"{value:.6g}" for value in row)])
        return text.getvalue()

    @property
    def digest(self) -> str:
        """Digest of everything that the picture shows."""
        colours = [series.place for series in self.series]
        drawn = f"{self.title}\n{self.style}\n{colours}\n{self.csv()}"
        return hashlib.blake2b(drawn.encode(), digest_size=8).hexdigest()


Part = str | Table | Chart


@dataclass(frozen=True)
class Page:
    """Paragraphs, tables and charts in order."""

    name: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Written:
    """A page that was written."""

    path: Path
    charts: int
    undrawn: list[str] = field(default_factory=list)
    """Charts without a picture of their current data."""


def write_page(page: Page, folder: Path, *, pictures: bool = True) -> Written:
    """Write `<name>.md` and beside it a folder of data and pictures; pictures that are up to date are kept."""
    beside = folder / page.name
    charts = [part for part in page.parts if isinstance(part, Chart)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        undrawn = []
        for chart in charts:
            beside.mkdir(exist_ok=True)
            replace_file(beside / f"{chart.name}.csv", chart.csv().encode())
            picture = beside / f"{chart.name}.svg"
            if drawn_from(picture) != chart.digest:
                if pictures and can_draw():
                    replace_file(picture, draw(chart).encode())
                else:
                    undrawn.append(chart.name)
        path = folder / f"{page.name}.md"
        replace_file(path, markdown(page, undrawn).encode())
    except OSError as error:
        raise Refusal(f"The page in {folder} cannot be written: {error.strerror or error}.") from error
    return Written(path, len(charts), undrawn)


def markdown(page: Page, undrawn: Sequence[str] = ()) -> str:
    """Return the page as Markdown."""
    blocks = [f"# {page.title}"]
    for part in page.parts:
        if isinstance(part, Table):
            blocks.append(part.markdown())
        elif isinstance(part, Chart):
            data = f"[{part.name}.csv]({page.name}/{part.name}.csv)"
            if part.name in undrawn:
                blocks.append(f"{part.title}: {data} (the picture is not drawn; that needs matplotlib).")
            else:
                blocks.append(f"![{part.title}]({page.name}/{part.name}.svg)\n\n{part.title}. Data: {data}")
        else:
            blocks.append(part)
    return "\n\n".join(blocks) + "\n"


def accuracy_series(label: str, x: Sequence[float], estimates: Sequence[Estimate], place: int | None = None) -> Series:
    """Return mean and 95 % interval in percent, the interval clipped to 0 to 100."""
    low = [None if one.low is None else 100 * max(0.0, one.low) for one in estimates]
    high = [None if one.high is None else 100 * min(1.0, one.high) for one in estimates]
    return Series(label, x, [100 * one.mean for one in estimates], low, high, place)
