"""The page about an on-demand job: the gain on each target, and the clients that it was composed of."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import IntArray
from covey.job.on_demand import OnDemand, TargetModel, target_curve
from covey.job.result_text import percent, size
from covey.page import palette
from covey.page.figures import Figure, LegendEntry, PlotlyChart, axis, plain, rounded, span
from covey.page.html_page import HtmlPage, Markup, Section, folded, table, write_page
from covey.probe.class_query import Privacy

_DRAWN = 6
"""Largest number of targets with charts."""

_CLASSES = 40
"""Largest number of classes drawn."""

_LISTED = 1_000
"""Largest number of clients listed."""

PRIVACY_CAPTION = "Cost of privacy on these clients: error of class shares (n·MAE)"
PRIVACY_COLUMNS = ("epsilon", "noise (σ)", "mean over clients", "by samples")

_BASE, _OWN, _CONTINUED = "var(--quiet)", palette.line(0), palette.line(1)


def ondemand_page(job: OnDemand, path: Path) -> Path:
    """Write the page about an on-demand job."""
    count = len(job.tailored)
    title = "A model on demand" if count == 1 else f"Models on demand for {count} targets"
    notes = [*job.composed.notes, *(_about(one, note) for one in job.tailored for note in one.notes)]
    results: list[Markup | Figure] = [table(["", ""], job_rows(job), "The job", head=False), results_table(job)]
    if count > 1:
        results.append(gains_figure(job))
    if job.composed.privacy:
        results.append(table(PRIVACY_COLUMNS, privacy_rows(job), PRIVACY_CAPTION, figures=True))
    shown = job.tailored[:_DRAWN]
    page = HtmlPage(
        title=f"Covey: {title.lower()}",
        headline=title,
        lead=job.verdict,
        sections=[
            Section("results", "Results", results),
            Section("learning", "Learning", [curve_figure(job, one, place) for place, one in enumerate(shown, 1)]),
            Section("mixes", "Mixes", [mix_figure(job, one, place) for place, one in enumerate(shown, 1)]),
            Section("clients", "Clients", [_clients(job)]),
        ],
        notices=notes,
        footer="Anyone who receives gradients of the last layer can estimate a client's class shares from them; at a "
        "last layer of zeros, exactly.",
    )
    return write_page(page, path)


def job_rows(job: OnDemand) -> list[tuple[str, str]]:
    """Return the summary of a job: name and figure."""
    composed = job.composed
    heard = int((composed.estimates.seen > 0).sum())
    runs = [one.run for one in job.tailored]
    up, down = (sum(row[way] for run in runs for row in run.metrics) for way in ("bytes_up", "bytes_down"))
    rows = [
        ("base run", f"{composed.base}, after {composed.base_round} rounds"),
        ("class shares", f"{composed.estimator}{_noise(job)}, of {heard:,} of {composed.clients:,} clients"),
        *([] if composed.error is None else [("  off by (n·MAE)", f"{composed.error:.3f}")]),
        *([("left out", ", ".join(composed.without))] if composed.without else []),
        ("rounds", f"{composed.rounds} for each target"),
        ("sent up / down", f"{size(up)} / {size(down)}"),
    ]
    if composed.bytes_up:
        rows.append(("  to ask clients", f"{size(composed.bytes_up)} / {size(composed.bytes_down)}"))
    return rows


def privacy_rows(job: OnDemand) -> list[tuple[str, ...]]:
    """Return the error of estimated class shares under noise, a row per ε; columns are `PRIVACY_COLUMNS`."""
    return [
        (f"{cost.epsilon:g}", f"{cost.deviation:.3g}", f"{cost.error:.3f}", f"{cost.error_by_samples:.3f}")
        for cost in job.composed.privacy
    ]


def results_table(job: OnDemand) -> Markup:
    """Return a table with a row per target."""
    further = ["continued"] if job.continued is not None else []
    truly = [] if any(one.true_mix is None for one in job.tailored) else ["truly off by"]
    columns = ["target", "clients", "composed, off by", *truly, "base", *further, "on demand", "best", "gain"]
    rows = [
        [
            one.wanted.name,
            f"{len(one.composition.clients)} of {job.composed.clients}",
            f"{one.composition.distance:.2f}",
            *([] if one.true_distance is None else [f"{one.true_distance:.2f}"]),
            percent(one.base.accuracy),
            *([percent(one.continued.accuracy)] if one.continued is not None else []),
            percent(one.scored.accuracy),
            percent(one.scored.peak),
            "-" if one.gain is None else f"{100 * one.gain:+.1f}",
            _tested(one),
        ]
        for one in job.tailored
    ]
    caption = "Accuracy on each target (gain in points over the base model); off by: n·MAE of the mix from the target"
    return table([*columns, "on its test set"], rows, caption, figures=True)


def gains_figure(job: OnDemand) -> Figure:
    """Return a chart of base accuracy against on-demand accuracy, a dot per target."""
    known = [one for one in job.tailored if one.scored.accuracy is not None and one.base.accuracy is not None]
    x = [100 * (one.base.accuracy or 0.0) for one in known]
    y = [100 * (one.scored.accuracy or 0.0) for one in known]
    ends = span([*x, *y]) if known else [0.0, 100.0]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": ends,
            "y": ends,
            "mode": "lines",
            "line": {"color": "var(--quiet)", "dash": "dash", "width": 1.5},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "x": rounded(x),
            "y": rounded(y),
            "mode": "markers",
            "marker": {"color": _OWN, "size": 9},
            "customdata": [plain(one.wanted.name) for one in known],
            "hovertemplate": "%{customdata}: %{x:.1f} % to %{y:.1f} %<extra></extra>",
        },
    ]
    layout = {
        "xaxis": axis("accuracy of the base model on the target, %", range=ends),
        "yaxis": axis("of the model on demand, %", range=ends),
        "hovermode": "closest",
    }
    caption = "A dot is a target. Above the dashed line, the model on demand is better."
    return Figure("gains", "Before and after", caption, [PlotlyChart(job.verdict, data, layout, 380)], wide=True)


def curve_figure(job: OnDemand, one: TargetModel, place: int) -> Figure:
    """Return accuracy on the target over rounds."""
    start = job.composed.base_round
    begin = [] if one.base.accuracy is None else [(0, one.base.accuracy)]
    lines = [("on demand", _OWN, [*begin, *one.curve])]
    if job.continued is not None:
        later = [(t - start, value) for t, value in target_curve(job.continued.metrics, one.tested_mix)]
        lines.append(("base run continued", _CONTINUED, [*begin, *(point for point in later if point[0] > 0)]))
    data = [
        {
            "type": "scatter",
            "x": [t for t, _ in points],
            "y": rounded([100 * value for _, value in points]),
            "mode": "lines+markers" if len(points) <= 40 else "lines",
            "line": {"color": colour, "width": 2.5},
            "name": name,
            "hovertemplate": f"{name}, round %{{x}}: %{{y:.1f}} %<extra></extra>",
        }
        for name, colour, points in lines
    ]
    values = [100 * value for _, _, points in lines for _, value in points] or [0.0, 100.0]
    layout = {
        "xaxis": axis("rounds after branching", rangemode="tozero"),
        "yaxis": axis("accuracy on the target, %", range=span(values)),
        "hovermode": "closest",
    }
    ends = f"{percent(one.base.accuracy)} at first, {percent(one.scored.accuracy)} at the end."
    alt = f"Accuracy on the target {one.wanted.name}: {ends}"
    caption = f"{one.wanted.name}. Accuracy of each class on the test set, weighted by the target."
    keys = [LegendEntry(name, colour) for name, colour, _ in lines]
    return Figure(f"curve-{place}", f"Target {place}", caption, [PlotlyChart(alt, data, layout, 320)], keys)


def mix_figure(job: OnDemand, one: TargetModel, place: int) -> Figure:
    """Return target, composed and (where known) true mix by class."""
    chosen = _classes(one)
    names = [plain(job.composed.class_names[label]) for label in chosen.tolist()]
    bars = [
        ("target", _BASE, one.wanted.mix),
        ("composed, by the estimates", _OWN, one.composition.mix),
        *([] if one.true_mix is None else [("truly", _CONTINUED, one.true_mix)]),
    ]
    data = [
        {
            "type": "bar",
            "x": names,
            "y": rounded(100 * mix[chosen]),
            "marker": {"color": colour},
            "hovertemplate": f"%{{x}}: {name} %{{y:.1f}} %<extra></extra>",
        }
        for name, colour, mix in bars
    ]
    layout = {
        "xaxis": axis("class", type="category", showgrid=False, automargin=True),
        "yaxis": axis("share of samples, %", rangemode="tozero"),
        "barmode": "group",
        "hovermode": "closest",
    }
    truly = "" if one.true_distance is None else f", truly {one.true_distance:.2f}"
    facts = (
        f"{len(one.composition.clients)} of {job.composed.clients} clients. n·MAE from the target: "
        f"{one.composition.distance:.2f} by the estimates{truly}."
    )
    keys = [LegendEntry(name, colour) for name, colour, _ in bars]
    chart = PlotlyChart(f"Mix of target {one.wanted.name}. {facts}", data, layout, 320)
    return Figure(f"mix-{place}", f"Target {place}", f"{one.wanted.name}. {facts}", [chart], keys)


def _classes(one: TargetModel) -> IntArray:
    """Return the classes with the largest shares, at most `_CLASSES`, in their order."""
    weight = np.maximum(one.wanted.mix, one.composition.mix)
    weight = weight if one.true_mix is None else np.maximum(weight, one.true_mix)
    most = np.argsort(-weight, kind="stable")[:_CLASSES]
    return np.sort(most[weight[most] > 0])


def _clients(job: OnDemand) -> Markup:
    """Return the clients that each target was composed of."""
    shares, names = job.composed.estimates.shares, job.composed.class_names
    rows = []
    for one in job.tailored:
        for at in np.argsort(-one.composition.ratios, kind="stable").tolist():
            client = int(one.composition.clients[at])
            largest = np.argsort(-shares[client], kind="stable")[:3]
            held = ", ".join(f"{names[label]} {shares[client, label]:.0%}" for label in largest.tolist())
            rows.append([one.wanted.name, job.composed.client_name(client), f"{one.composition.ratios[at]:.1%}", held])
    more = f"; {len(rows) - _LISTED:,} more are not listed" if len(rows) > _LISTED else ""
    listed = table(
        ["target", "client", "ratio", "largest classes by estimate"], rows[:_LISTED], f"Chosen clients{more}"
    )
    return folded("Chosen clients and their ratios", listed)


def _noise(job: OnDemand) -> str:
    """Return the privacy budget of the clients' answers, if they had noise."""
    if job.composed.insight_dp is None:
        return ""
    budget = Privacy.of(job.composed.insight_dp, "insight_dp")
    return f" with noise (ε {budget.epsilon:g}, δ {budget.delta:g})"


def _about(one: TargetModel, note: str) -> str:
    return note if one.wanted.name in note else f"{one.wanted.name}: {note}"


def _tested(one: TargetModel) -> str:
    return (
        f"{percent(one.base.tested)} to {percent(one.scored.tested)} ({one.test_samples:,})"
        if one.test_samples
        else "-"
    )
