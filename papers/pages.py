"""Pages: tables and charts as Markdown, their data as CSV, their pictures as SVG where matplotlib is installed.

A page is made from stored results alone. A picture carries the digest of the data that it was drawn from, and a page
shows it only while that is still its data.
"""

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from covey.errors import Refusal
from covey.job.comparison.statistics import Estimate
from covey.storage import replace_file
from papers.drawing import can_draw, draw, drawn_from
from papers.plan import Paper, Scale, Wanted, made_otherwise
from papers.statistics import apart
from papers.store import Result, Store

MISSING = "not run yet"


@dataclass(frozen=True)
class Table:
    """A table: cells are Markdown already."""

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
    """With `high`: a band, or a bar where there are only points."""
    high: Sequence[float | None] = ()
    place: int | None = None
    """Which colour it has, where that shall be the same in several charts; else by its place in the chart."""


@dataclass(frozen=True)
class Chart:
    """A picture and the numbers in it."""

    name: str
    """Of its files."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    style: Literal["lines", "points", "both"] = "lines"

    def csv(self) -> str:
        """One line for each point."""
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
        colours = [series.place for series in self.series]
        drawn = f"{self.title}\n{self.style}\n{colours}\n{self.csv()}"
        return hashlib.blake2b(drawn.encode(), digest_size=8).hexdigest()


Part = str | Table | Chart


@dataclass(frozen=True)
class Page:
    """What is said and shown, in order."""

    name: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Written:
    """A page that was written."""

    path: Path
    charts: int
    undrawn: list[str] = field(default_factory=list)
    """Charts without a picture of their present data."""


def write_page(page: Page, folder: Path, *, pictures: bool = True) -> Written:
    """Write `<name>.md`, and beside it a folder of data and pictures; pictures that are up to date are left alone."""
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
    """The page's text."""
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


About = TypeVar("About")


def assembled(
    scale: Scale,
    title: str,
    about: About,
    opening: Sequence[Part],
    sections: Mapping[str, Callable[[About], list[Part]]],
    runs: Part,
    notes: Sequence[str],
) -> Page:
    """The page of a paper at one scale: `sections` are made of what they need to know, `about`."""
    parts: list[Part] = [*opening]
    for heading, make in sections.items():
        parts += [f"## {heading}", *make(about)]
    parts += ["## Runs", runs]
    if notes:
        parts += ["Left out:", *bullets(notes)]
    return Page(scale.store, title, parts)


def command_of(paper: Paper, scale: Scale) -> str:
    """What makes a page, for whoever misses something in it."""
    return f"covey reproduce {paper.name}" + (f" --scale {scale.name}" if scale.local_only else "")


def usable(paper: Paper, scale: Scale, store: Store, methods: Sequence[str] | None = None) -> tuple[Store, list[str]]:
    """The results that were made as planned, and a sentence on each that was not and is left out."""
    plan = paper.groups(scale, Wanted(seeds=(0,), methods=None if methods is None else tuple(methods)))
    runs = {(run.environment, run.method, run.variant): run for group in plan for run in group.runs}
    kept, notes = [], []
    for result in store:
        place = (result.environment, result.method, result.variant)
        if place not in runs:
            notes.append(f"{result.name} is not part of this page's plan.")
            continue
        other = made_otherwise(runs[place], result.config, result.branch)
        if other:
            notes.append(f"{result.name} was made with other settings: {'; '.join(other)}.")
        else:
            kept.append(result)
    return Store(store.folder, kept), notes


def cell(value: float | None, form: str) -> str:
    """A number as a cell, or that there is none."""
    return "-" if value is None else form.format(value)


def percent(value: float | None) -> str:
    """A fraction in percent, without the sign."""
    return cell(None if value is None else 100 * value, "{:.1f}")


def spread(estimate: Estimate, form: str = "{:.1f}", factor: float = 100.0) -> str:
    """Mean ± half the 95 % interval; the mean alone where one seed gives no interval."""
    text = form.format(factor * estimate.mean)
    if float(text) == 0:
        text = form.format(0.0)  # never a minus before nothing
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ± {form.replace('+', '').format(factor * (estimate.high - estimate.low) / 2)}"


def clearness(difference: Estimate) -> str:
    """What a difference is worth, in words."""
    words = {None: "one seed, no interval", True: "clear of zero", False: "within the noise of these seeds"}
    return words[apart(difference)]


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def every_text(rounds: int) -> str:
    """How often: `every round` or `every 5 rounds`."""
    return "every round" if rounds == 1 else f"every {rounds} rounds"


def accuracy_series(label: str, x: Sequence[float], estimates: Sequence[Estimate], place: int | None = None) -> Series:
    """Mean and 95 % interval in percent, the interval cut to what accuracies can be."""
    low = [None if one.low is None else 100 * max(0.0, one.low) for one in estimates]
    high = [None if one.high is None else 100 * min(1.0, one.high) for one in estimates]
    return Series(label, x, [100 * one.mean for one in estimates], low, high, place)


ORIGIN = ("device", "arithmetic", "PyTorch", "commit", "begun")


def origin(runs: Sequence[Result]) -> list[str]:
    """How and when runs were made: cells below `ORIGIN`."""
    return [
        different([result.device for result in runs]),
        different([str(result.config["precision"]) for result in runs]),
        different([result.torch for result in runs]),
        different([(result.commit or "-")[:10] for result in runs]),
        different([result.date[:10] for result in runs]),
    ]


def different(values: Sequence[str]) -> str:
    """Each of them once, in a row."""
    return ", ".join(dict.fromkeys(values))


def not_yet(what: str, command: str) -> str:
    return f"{what}: {MISSING}. To run it: `{command}`"


def bullets(sentences: Sequence[str]) -> list[Part]:
    """A list of sentences; nothing where there are none."""
    return ["\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []


def joined(words: Sequence[str]) -> str:
    """Some of them in a row: `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
