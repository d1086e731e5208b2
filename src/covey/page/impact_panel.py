"""Charts of fairness: clients' losses, and the impact factor of each client."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.job.runs import Run
from covey.page import palette
from covey.page.curves import over_rounds
from covey.page.figures import Figure, PlotlyChart, axis, rounded
from covey.page.run_data import FederationGroup, Line, ReportData

_COLUMNS = 120
"""Largest number of columns; more rounds are averaged in groups."""

_ROWS = 200
"""Largest number of clients shown; more are sampled at equal distances."""


def client_loss_figures(report: ReportData) -> list[Figure | None]:
    """Return mean, variance and gap of the losses of the received model over clients, where they reported them."""
    about = "Loss of the model that a round's clients received, on their own samples"
    missing = "" if all(_reports(line) for line in report.lines) else " Only methods whose clients report it."
    return [
        over_rounds(
            report, name, heading, f"{about}: {words}.{missing}", title, _client_loss(figure), percent=False, height=300
        )
        for name, heading, words, title, figure in (
            ("client-loss", "Clients' mean loss", "mean over clients", "mean loss of clients, nats", "mean"),
            (
                "client-loss-variance",
                "How unevenly clients are served",
                "variance over clients; 0 is equal service",
                "variance of clients' losses",
                "variance",
            ),
            (
                "client-loss-gap",
                "From the best to the worst served client",
                "the highest less the lowest",
                "gap of clients' losses, nats",
                "gap",
            ),
        )
    ]


def impact_figure(report: ReportData) -> Figure | None:
    """Return heat maps of the clients' impact factors over rounds, one per line that has them."""
    charts = [_impact_chart(group, line) for group in report.groups for line in group.lines if _weighs(line.runs[0])]
    if not charts:
        return None
    seeds = sorted({line.seeds[0] for line in report.lines if _weighs(line.runs[0])})
    caption = (
        f"Impact factor of each client, in percent, of seed {', '.join(map(str, seeds))}: the weight of its model "
        "in the rounds in which it took part. Empty where it did not take part, 0 where its reply could not be used."
    )
    return Figure("impact", "How much each client counts", caption, charts, wide=True)


def _client_loss(figure: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda row: row.get("client_loss", {}).get(figure)


def _reports(line: Line) -> bool:
    return all(any("client_loss" in row for row in run.metrics) for run in line.runs)


def _weighs(run: Run) -> bool:
    return any("impact_factors" in row.get("figures", {}) for row in run.metrics)


def impact_factors(run: Run) -> FloatArray:
    """Return impact factors `[clients, rounds]`; NaN where a client did not take part."""
    factors = np.full((run.config.clients, len(run.metrics)), np.nan)
    for column, row in enumerate(run.metrics):
        for client, factor in row.get("figures", {}).get("impact_factors", {}).items():
            factors[int(client), column] = factor
    return factors


def _impact_chart(group: FederationGroup, line: Line) -> PlotlyChart:
    factors = 100 * impact_factors(line.runs[0])
    weighed = np.flatnonzero(np.isfinite(factors).any(axis=1))
    if len(factors) <= _ROWS:
        clients = np.arange(len(factors))
    else:
        clients = weighed[np.unique(np.linspace(0, len(weighed) - 1, min(_ROWS, len(weighed))).round().astype(int))]
    ends, shown = _grouped(factors[clients])
    highest = float(np.nanmax(shown))
    cells: list[list[float | None]] = [
        [float(f"{value:.3g}") if np.isfinite(value) else None for value in row] for row in shown
    ]
    means = _means(factors)
    taking_part = np.flatnonzero(np.isfinite(means))
    order = taking_part[np.argsort(means[taking_part])]
    size = ends[0] if len(ends) > 1 else 1
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": ends,
            "y": [int(client) for client in clients],
            "z": cells,
            "colorscale": palette.scale(),
            "zmin": 0,
            "zmax": rounded([highest])[0],
            "hoverongaps": False,
            "colorbar": {"title": {"text": "impact factor, %", "side": "right"}, "thickness": 12},
            "hovertemplate": "client %{y}, round %{x}: %{z:.3g} %<extra></extra>",
        }
    ]
    rounds = "round" if size == 1 else f"round (mean of {size} up to it)"
    some = "" if len(clients) == len(factors) else f" ({len(clients)} of {len(factors)} shown)"
    layout = {
        "xaxis": axis(rounds, showgrid=False, zeroline=False),
        "yaxis": axis(f"client{some}", showgrid=False, zeroline=False, autorange="reversed", automargin=True),
        "hovermode": "closest",
    }
    alt = (
        f"Heat map of impact factors by client and round, {line.label}. On average client {order[-1]} counts most "
        f"({means[order[-1]]:.3g} %) and client {order[0]} least ({means[order[0]]:.3g} %)."
    )
    title = line.label if not group.title else f"{line.label} ({group.title})"
    return PlotlyChart(alt, data, layout, max(280, min(620, 160 + 14 * len(clients))), title)


def _grouped(factors: FloatArray) -> tuple[list[int], FloatArray]:
    """Return the last round of each group of rounds, and the means over groups `[clients, groups]`."""
    rounds = factors.shape[1]
    size = -(-rounds // _COLUMNS)
    ends = [*range(size, rounds, size), rounds]
    parts = [factors[:, max(0, end - size) if end % size == 0 else end - end % size : end] for end in ends]
    return ends, np.stack([_means(part) for part in parts], axis=1)


def _means(values: FloatArray) -> FloatArray:
    """Return means of rows over finite values; NaN where there are none."""
    there = np.isfinite(values)
    count = there.sum(axis=1)
    means: FloatArray = np.where(count > 0, np.where(there, values, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return means
