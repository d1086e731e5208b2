"""Charts of final results: terminal accuracy, accuracy by class, time by phase."""

from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.row_figures import terminal_of
from covey.page import palette
from covey.page.figures import Figure, LegendEntry, PlotlyChart, axis, plain, rounded, seeds_in_words, span
from covey.page.run_data import FederationGroup, Line, ReportData

_NUMBERS_UP_TO = 20
"""With more classes than this, cells have no room for numbers."""


def terminal_figure(report: ReportData) -> Figure | None:
    """Return a chart of terminal accuracy with intervals, for two lines or more."""
    if len(report.lines) < 2:
        return None
    charts = [_terminal(group) for group in report.groups]
    caption = (
        f"Mean over the last 5 % of the rounds. {seeds_in_words(report.lines)}"
        + ("" if all(len(line.runs) < 2 for line in report.lines) else "; the bar is the 95 % interval")
        + "."
    )
    metrics = {group.comparison.metric.label for group in report.groups}
    what = metrics.pop() if len(metrics) == 1 else "score"
    return Figure("terminal", f"Terminal {what}", caption, charts, wide=True)


def _terminal(group: FederationGroup) -> PlotlyChart:
    data = []
    metric = group.comparison.metric
    unit, form = (" %", ".1f") if metric.share else ("", ".4g")
    for line, row in zip(group.lines, group.rows, strict=True):
        trace: dict[str, Any] = {
            "type": "scatter",
            "x": rounded([metric.shown(terminal_of(row))]),
            "y": [plain(line.label)],
            "mode": "markers",
            "marker": {"color": palette.line(line.place), "symbol": palette.symbol(line.place), "size": 10},
            "hovertemplate": f"%{{x:{form}}}{unit}<extra>" + plain(line.label) + "</extra>",
            "legendgroup": f"line-{line.place}",
        }
        if row["terminal_low"] is not None:
            low, mean, high = map(metric.shown, (row["terminal_low"], terminal_of(row), row["terminal_high"]))
            # Intervals are cut at 0 and 100 %, so they need not be symmetric.
            trace["error_x"] = {
                "symmetric": False,
                "array": rounded([high - mean]),
                "arrayminus": rounded([mean - low]),
                "color": palette.line(line.place),
                "thickness": 2,
                "width": 5,
            }
            trace["hovertemplate"] = (
                f"%{{x:{form}}}{unit} ({low:{form}} to {high:{form}})<extra>{plain(line.label)}</extra>"
            )
        data.append(trace)
    ends = ", ".join(f"{row['name']} {metric.text(terminal_of(row))}" for row in group.rows)
    layout = {
        "xaxis": axis(f"terminal test {metric.axis}", **_axis_range(group)),
        "yaxis": axis("method", autorange="reversed", automargin=True, type="category"),
        "hovermode": "closest",
    }
    return PlotlyChart(
        f"Dot chart of terminal {metric.label} with 95 % intervals: {ends}.",
        data,
        layout,
        90 + 30 * len(group.lines),
        group.title,
    )


def _reach(group: FederationGroup) -> list[float]:
    """Return all values that are drawn, intervals included."""
    metric = group.comparison.metric
    values = [(row["terminal_low"], terminal_of(row), row["terminal_high"]) for row in group.rows]
    return [metric.shown(value) for row in values for value in row if value is not None]


def _axis_range(group: FederationGroup) -> dict[str, Any]:
    reach = _reach(group)
    if group.comparison.metric.share:
        return {"range": span(reach)}
    margin = 0.05 * (max(reach) - min(reach)) or 0.1 * (abs(reach[0]) or 1.0)
    return {"range": rounded([min(reach) - margin, max(reach) + margin])}


def classes_figure(report: ReportData, names: dict[FederationGroup, tuple[str, ...]]) -> Figure | None:
    """Return charts of final accuracy by class; `names` are the classes of a group's data set, where known."""
    charts = [chart for group in report.groups if (chart := _classes(group, names.get(group)))]
    if not charts:
        return None
    caption = f"Test accuracy of each class at the last evaluation. {seeds_in_words(report.lines)}."
    return Figure("classes", "Accuracy by class, %", caption, charts, wide=True)


def _classes(group: FederationGroup, names: tuple[str, ...] | None) -> PlotlyChart | None:
    found = {line: row for line in group.lines if (row := _last_classes(line)) is not None}
    if not found:
        return None
    lines, shares = list(found), list(found.values())
    classes = len(shares[0])
    labels = [plain(name) for name in names or ()] or [str(label) for label in range(classes)]
    low, high = min(row.min() for row in shares), max(row.max() for row in shares)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": labels,
        "y": [plain(line.label) for line in lines],
        "z": [rounded(row) for row in shares],
        "colorscale": palette.scale(),
        "zmin": float(np.floor(low / 10) * 10),
        "zmax": float(max(np.ceil(high / 10) * 10, np.floor(low / 10) * 10 + 10)),
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "accuracy, %", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y}, class %{x}: %{z:.1f} %<extra></extra>",
    }
    if classes <= _NUMBERS_UP_TO:
        trace.update(texttemplate="%{z:.0f}", showscale=False)
    worst = "; ".join(
        f"{line.label}: worst class {labels[int(row.argmin())]} with {row.min():.0f} %"
        for line, row in zip(lines, shares, strict=True)
    )
    layout = {
        "xaxis": axis("class", type="category", automargin=True, showgrid=False),
        "yaxis": axis("method", autorange="reversed", automargin=True, type="category", showgrid=False),
    }
    return PlotlyChart(
        f"Heat map of accuracy in % by method and class. {worst}.",
        [trace],
        layout,
        max(190, 110 + 30 * len(lines)),
        group.title,
    )


def _last_classes(line: Line) -> FloatArray | None:
    """Return the accuracy by class at the last evaluation, in % `[classes]`, mean over seeds."""
    last = [[row["class_accuracy"] for row in run.metrics if row.get("class_accuracy")][-1:] for run in line.runs]
    return 100 * np.array([found[0] for found in last], dtype=np.float64).mean(axis=0) if all(last) else None


def seconds_figure(report: ReportData) -> Figure | None:
    """Return charts of this machine's time by phase of a round."""
    phases = list(dict.fromkeys(phase for line in report.lines for phase in _seconds(line)))
    if not phases:
        return None
    slowest = max(sum(_seconds(line).values()) for line in report.lines)
    unit_of_time = ("ms", 0.001) if slowest < 0.2 else ("s", 1.0)
    charts = [_phases(group, phases, unit_of_time) for group in report.groups]
    keys = [LegendEntry(phase, palette.phase(place)) for place, phase in enumerate(phases)]
    caption = f"Time that this machine spent, mean over rounds. {seeds_in_words(report.lines)}."
    return Figure("seconds", "Time by phase", caption, charts, keys, wide=len(charts) > 1 or len(report.lines) > 6)


def _phases(group: FederationGroup, phases: list[str], unit_of_time: tuple[str, float]) -> PlotlyChart:
    labels = [plain(line.label) for line in group.lines]
    unit, factor = unit_of_time
    spent = [{phase: value / factor for phase, value in _seconds(line).items()} for line in group.lines]
    totals = [sum(row.values()) for row in spent]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "x": rounded([row.get(phase, 0.0) for row in spent]),
            "y": labels,
            "marker": {"color": palette.phase(place)},
            "hovertemplate": "%{x:.3g} " + unit + "<extra>" + phase + ", %{y}</extra>",
        }
        for place, phase in enumerate(phases)
    ]
    data.append(
        {
            "type": "scatter",
            "x": rounded(totals),
            "y": labels,
            "mode": "text",
            "text": [f" {total:.3g} {unit}" if total < 100 else f" {total:,.0f} {unit}" for total in totals],
            "textposition": "middle right",
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
    )
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": axis(f"time per round, {unit}", range=rounded([0, 1.3 * max(totals) or 1])),
        "yaxis": axis("method", autorange="reversed", automargin=True, type="category", showgrid=False),
        "hovermode": "closest",
    }
    summary = "; ".join(
        f"{line.label}: " + ", ".join(f"{phase} {value:.3g} {unit}" for phase, value in row.items())
        for line, row in zip(group.lines, spent, strict=True)
    )
    return PlotlyChart(
        f"Stacked bars of time per round by phase. {summary}.",
        data,
        layout,
        max(200, 100 + 30 * len(labels)),
        group.title,
    )


def _seconds(line: Line) -> dict[str, float]:
    """Return phase → seconds per round, mean over rounds and seeds."""
    totals: dict[str, float] = {}
    rounds = sum(len(run.metrics) for run in line.runs)
    for run in line.runs:
        for row in run.metrics:
            for phase, value in row.get("seconds", {}).items():
                totals[phase] = totals.get(phase, 0.0) + float(value) / rounds
    return totals
