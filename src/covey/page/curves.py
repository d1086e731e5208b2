"""Charts of figures over rounds, bytes and time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.core.runtime_traits import traits_of
from covey.job.result_text import size
from covey.job.runs import Run
from covey.page import palette
from covey.page.figures import (
    Figure,
    PlotlyChart,
    axis,
    band_in_words,
    keys_of,
    plain,
    rounded,
    seeds_in_words,
    span,
    spread,
)
from covey.page.run_data import FederationGroup, Line, ReportData
from covey.task.learning_task import ACCURACY, Metric
from covey.task.run_metric import main_score

BANDS_UP_TO = 6
"""With more lines than this in a chart, bands would hide each other."""

POINTS_UP_TO = 600
"""Largest number of points of a line: a screen shows no more, and pages of long runs stay small."""

Value = Callable[[Mapping[str, Any]], float | None]
"""The figure that a chart shows, of a round's record; None if the record has none."""


def score_figures(report: ReportData) -> list[Figure | None]:
    """Return the main metric over rounds, a figure for each metric."""
    return [
        over_rounds(
            part,
            metric.name,
            f"{_title(metric)} over rounds",
            f"{_capital(metric.label)} of the model on the common test set; of the mean client where every client has "
            "its own model.",
            f"test {metric.axis}",
            lambda row, metric=metric: _shown(row, metric),  # type: ignore[misc]
            percent=metric.share,
            wide=True,
            height=380,
        )
        for metric, part in by_metric(report)
    ]


def by_metric(report: ReportData) -> list[tuple[Metric, ReportData]]:
    """Return the report's main metrics, each with the part of the report that it measures."""
    found: dict[Metric, list[FederationGroup]] = {}
    for group in report.groups:
        found.setdefault(group.comparison.metric, []).append(group)
    return [(metric, replace(report, groups=tuple(groups))) for metric, groups in found.items()]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _title(metric: Metric) -> str:
    return f"Test {metric.label}"


def _shown(row: Mapping[str, Any], metric: Metric) -> float | None:
    """Return the main metric of a round as it is drawn."""
    value = main_score(row)
    return None if value is None else metric.shown(value)


def worst_clients_figures(report: ReportData) -> list[Figure | None]:
    """Return the main metric of the worst-served tenth of the clients, where they have tests of their own."""

    def worst(row: Mapping[str, Any], metric: Metric) -> float | None:
        over = row.get("client_score")
        return None if over is None else metric.shown(over["worst_decile"])

    return [
        over_rounds(
            part,
            f"worst-{metric.name}",
            f"{_capital(metric.label)} of the worst-served clients",
            "Mean over the tenth of the clients that are served worst, each on test samples of its own.",
            f"{metric.axis} of the worst tenth",
            lambda row, metric=metric: worst(row, metric),  # type: ignore[misc]
            percent=metric.share,
        )
        for metric, part in by_metric(report)
    ]


def own_accuracy_figure(report: ReportData) -> Figure | None:
    """Return accuracy on clients' own class mixes over rounds."""
    return over_rounds(
        report,
        "own-accuracy",
        "Accuracy on clients' own class mix",
        "Test accuracy weighted by each client's true class shares, mean over clients.",
        "accuracy on own mix, %",
        lambda row: _percent(row.get("own_accuracy")),
    )


def loss_figure(report: ReportData) -> Figure | None:
    """Return test loss over rounds."""
    classes = all(metric == ACCURACY for metric, _ in by_metric(report))
    return over_rounds(
        report,
        "loss",
        "Test loss over rounds",
        "Cross-entropy on the common test set." if classes else "Mean loss on the common test set.",
        "test loss, nats" if classes else "test loss",
        lambda row: row.get("loss"),
        percent=False,
    )


def training_loss_figure(report: ReportData) -> Figure | None:
    """Return training loss over rounds."""
    classes = all(metric == ACCURACY for metric, _ in by_metric(report))
    return over_rounds(
        report,
        "training-loss",
        "Training loss over rounds",
        "Mean loss over the local steps of the round's clients, weighted by samples; without weight decay and the "
        "proximal term.",
        "training loss, nats" if classes else "training loss",
        lambda row: row.get("train_loss"),
        percent=False,
    )


def cohort_skew_figure(report: ReportData) -> Figure | None:
    """Return the mean true skew of the cohorts over rounds."""
    return over_rounds(
        report,
        "cohort-skew",
        "Skew of the cohort",
        "Mean true skew of the clients invited in a round. References that reshape the data have clients of their own.",
        "mean skew of the cohort (0 to 1)",
        lambda row: row.get("cohort_skew"),
        percent=False,
    )


def cost_figures(report: ReportData) -> list[Figure | None]:
    """Return the main metric against bytes and against time, for each metric."""
    parts = [(metric, part) for metric, part in by_metric(report)]
    return [draw(part, metric) for draw in (bytes_figure, clock_figure) for metric, part in parts]


def bytes_figure(report: ReportData, metric: Metric = ACCURACY) -> Figure | None:
    """Return test accuracy, or another main metric, against bytes sent."""
    sent = [line_bytes(line, direction) for line in report.lines for direction in ("bytes_up", "bytes_down")]
    if not any(sent):
        return None
    most = max(sum(line_bytes(line, way) for way in ("bytes_up", "bytes_down")) for line in report.lines)
    unit, factor = _bytes_unit(most)
    return _against(
        report,
        metric,
        "bytes",
        f"{_capital(metric.label)} against bytes sent",
        "Bytes up and down together, summed over the rounds so far.",
        f"bytes sent, {unit}",
        lambda run: np.cumsum([row["bytes_up"] + row["bytes_down"] for row in run.metrics]) / factor,
        lambda value: size(value * factor),
    )


def clock_figure(report: ReportData, metric: Metric = ACCURACY) -> Figure | None:
    """Return test accuracy, or another main metric, against time, simulated or real."""
    timed = [line for line in report.lines if all(run.metrics[-1].get("clock") for run in line.runs)]
    if not timed:
        return None
    unit, factor = _time_unit(max(float(run.metrics[-1]["clock"]) for line in timed for run in line.runs))
    live = all(traits_of(run.config.runtime).live for line in timed for run in line.runs)
    simulated = "Time that the rounds would have taken on the simulated devices and network."
    return _against(
        report,
        metric,
        "clock",
        f"{_capital(metric.label)} against {'time' if live else 'simulated time'}",
        "Time that the rounds took on the fleet." if live else simulated,
        f"time, {unit}" if live else f"simulated time, {unit}",
        lambda run: np.array([row["clock"] for row in run.metrics], dtype=np.float64) / factor,
        lambda value: f"{value:.3g} {unit}",
        timed,
    )


def line_bytes(line: Line, direction: str) -> float:
    """Return the bytes sent in one direction over the whole run, mean over seeds."""
    return float(np.mean([sum(row[direction] for row in run.metrics) for run in line.runs]))


def over_rounds(
    report: ReportData,
    name: str,
    heading: str,
    caption: str,
    title: str,
    value: Value,
    *,
    percent: bool = True,
    wide: bool = False,
    height: int = 320,
) -> Figure | None:
    """Return lines over rounds, with mean and band over seeds; None if no line has the value."""
    drawn = {line: _by_round(line, value) for line in report.lines}
    drawn = {line: found for line, found in drawn.items() if len(found[0])}
    if not drawn:
        return None
    bands = max(len(group.lines) for group in report.groups) <= BANDS_UP_TO
    reach = [float(v) for line, (_, values) in drawn.items() for v in _extent(values, bands, percent)]
    y = axis(title, **_y_range(reach, percent))
    charts = []
    for group in report.groups:
        lines = [line for line in group.lines if line in drawn]
        if not lines:
            continue
        data = [trace for line in lines for trace in _traces(line, drawn[line][0], drawn[line][1], bands, percent)]
        ends = ", ".join(f"{line.label} {drawn[line][1].mean(axis=0)[-1]:.3g}" for line in lines)
        alt = f"Line chart: {title} over rounds{_where(group)}. At the end: {ends}."
        layout = {"xaxis": axis("round"), "yaxis": y, "hovermode": "x unified"}
        charts.append(PlotlyChart(alt, data, layout, height, group.title))
    words = f"{caption} {seeds_in_words(list(drawn))}; {band_in_words(list(drawn), bands)}."
    return Figure(name, heading, words, charts, keys_of(list(drawn)), wide or len(charts) > 1)


def _against(
    report: ReportData,
    metric: Metric,
    name: str,
    heading: str,
    caption: str,
    title: str,
    cost: Callable[[Run], FloatArray],
    spell: Callable[[float], str],
    only: Sequence[Line] | None = None,
) -> Figure | None:
    """Return a metric against a cost that grows over rounds, both as means over seeds."""
    charts = []
    lines = [line for line in report.lines if only is None or line in only]
    every = [_shown(row, metric) for line in lines for run in line.runs for row in run.metrics]
    everything = [value for value in every if value is not None]
    unit, form = (" %", ".1f") if metric.share else ("", ".4g")
    for group in report.groups:
        data, ends = [], []
        for line in (line for line in group.lines if line in lines):
            rounds, accuracy = _by_round(line, lambda row: _shown(row, metric))
            costs = np.mean([_at_rounds(run, cost(run), rounds) for run in line.runs], axis=0)
            mean = accuracy.mean(axis=0)
            data.append(
                {
                    **_line(line, rounded(costs), rounded(mean)),
                    "customdata": [[int(t), spell(float(c))] for t, c in zip(rounds, costs, strict=True)],
                    "hovertemplate": f"%{{y:{form}}}{unit}" + " after %{customdata[1]} (round %{customdata[0]})"
                    f"<extra>{plain(line.label)}</extra>",
                }
            )
            ends.append(f"{line.label} {mean[-1]:.3g}{unit} after {spell(float(costs[-1]))}")
        if data:
            alt = f"Line chart: test {metric.label} against {title}{_where(group)}. At the end: {', '.join(ends)}."
            layout = {
                "xaxis": axis(title, rangemode="tozero"),
                "yaxis": axis(f"test {metric.axis}", **_y_range(everything, metric.share)),
                "hovermode": "closest",
            }
            charts.append(PlotlyChart(alt, data, layout, 320, group.title))
    words = f"{caption} {seeds_in_words(lines)}."
    return Figure(name, heading, words, charts, keys_of(lines), len(charts) > 1) if charts else None


def _by_round(line: Line, value: Value) -> tuple[FloatArray, FloatArray]:
    """Return rounds at which every seed has the value `[points]`, evenly thinned, and the values `[seeds, points]`."""
    tables = [{row["round"]: found for row in run.metrics if (found := value(row)) is not None} for run in line.runs]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    if len(common) > POINTS_UP_TO:
        common = [common[place] for place in np.linspace(0, len(common) - 1, POINTS_UP_TO).round().astype(int)]
    figures = np.array([[table[t] for t in common] for table in tables], dtype=np.float64)
    return np.array(common, dtype=np.float64), figures.reshape(len(tables), len(common))


def _at_rounds(run: Run, values: FloatArray, rounds: FloatArray) -> FloatArray:
    place = {row["round"]: at for at, row in enumerate(run.metrics)}
    return values[[place[int(t)] for t in rounds]]


def _traces(line: Line, rounds: FloatArray, values: FloatArray, bands: bool, percent: bool) -> list[dict[str, Any]]:
    x = [int(t) for t in rounds]
    traces = []
    around = _band(values, percent) if bands else None
    unit, form, note = (" %", ".1f", "") if percent else ("", ".3g", "")
    if around is not None:
        low, high = around
        traces.append(
            {
                "type": "scatter",
                "x": [*x, *reversed(x)],
                "y": rounded([*high, *low[::-1]]),
                "mode": "lines",
                "fill": "toself",
                "fillcolor": palette.band(line.place),
                "line": {"width": 0, "color": palette.line(line.place)},
                "hoverinfo": "skip",
                "legendgroup": f"line-{line.place}",
            }
        )
        note = f"  (%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}})"
    mean = {
        **_line(line, x, rounded(values.mean(axis=0))),
        "hovertemplate": f"%{{y:{form}}}" + unit + note + f"<extra>{plain(line.label)}</extra>",
    }
    if around is not None:
        mean["customdata"] = [rounded(pair) for pair in zip(*around, strict=True)]
    return [*traces, mean]


def _line(line: Line, x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": plain(line.label),
        "x": list(x),
        "y": list(y),
        "mode": "lines" if len(x) > 1 else "markers",
        "line": {"color": palette.line(line.place), "dash": palette.stroke(line.place), "width": _width(line)},
        "marker": {"color": palette.line(line.place), "size": 8},
        "legendgroup": f"line-{line.place}",
    }


def _width(line: Line) -> float:
    """Return the stroke width. The first line is wider, so that it shows under one that coincides with it."""
    return 3.5 if line.place == 0 else 2


def _band(values: FloatArray, percent: bool) -> tuple[FloatArray, FloatArray] | None:
    """Return the band, cut to possible values: not negative, percentages not above 100."""
    around = spread(values)
    if around is None:
        return None
    low, high = np.maximum(around[0], 0.0), np.minimum(around[1], 100.0) if percent else around[1]
    return low, high


def _extent(values: FloatArray, bands: bool, percent: bool) -> FloatArray:
    around = _band(values, percent) if bands else None
    mean = values.mean(axis=0)
    return mean if around is None else np.concatenate([*around, mean])


def _y_range(reach: Sequence[float], percent: bool) -> dict[str, Any]:
    """Return the axis range of all charts of a figure; logarithmic if a loss spans decades."""
    if percent:
        return {"range": span(reach)}
    low, high = min(reach), max(reach)
    if low > 0 and high / low > 300:
        return {"type": "log", "range": rounded([np.log10(low) - 0.1, np.log10(high) + 0.1]), "dtick": 1}
    margin = 0.05 * (high - low) or 0.1
    return {"range": rounded([max(0.0, low - margin) if low >= 0 else low - margin, high + margin])}


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _where(group: FederationGroup) -> str:
    return f" ({group.title})" if group.title else ""


def _bytes_unit(most: float) -> tuple[str, float]:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if most >= factor:
            return unit, factor
    return "B", 1.0


def _time_unit(most: float) -> tuple[str, float]:
    for unit, factor in (("days", 172_800.0), ("hours", 7_200.0), ("minutes", 180.0)):
        if most >= factor:
            return unit, {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0}[unit]
    return "seconds", 1.0
