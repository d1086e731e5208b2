"""Charts of clients: how data is split, who was invited, whose replies were dropped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.job.federation_summary import Description
from covey.page import palette
from covey.page.figures import Figure, PlotlyChart, axis, keys_of, plain, rounded, seeds_in_words
from covey.page.html_page import HtmlPage, Section, table, write_page
from covey.page.run_data import FederationGroup, Line, ReportData

_COLUMNS = 400
"""Largest number of clients drawn."""

_NAMES_UP_TO = 20
_POINTS_UP_TO = 4
_DOTS = 2_000
"""Largest number of dots of a method."""

_BINS = 8


def mix_figure(federations: Sequence[tuple[str, Description]]) -> Figure:
    """Return charts of skew, size and class mix of each client, one per federation with its title."""
    charts = [mix_chart(description, title) for title, description in federations]
    seeds = sorted({description.config.seed for _, description in federations})
    mixes = {"class mix" if one.groups == "classes" else f"mix of {one.groups}" for _, one in federations}
    mix = " or ".join(sorted(mixes))
    caption = (
        f"Clients of seed {', '.join(map(str, seeds))} from the least to the most skewed. "
        "Skew is the environment's own parameter (α) where it has one, else the distance of a client's "
        f"{mix} from the overall mix, from 0 to 1."
    )
    return Figure("mix", "How data is split", caption, charts, wide=True)


def mix_chart(description: Description, title: str = "") -> PlotlyChart:
    """Return a chart with three rows over the clients by skew: skew, samples, class mix."""
    chosen = description.sample(_COLUMNS)
    x = list(range(1, len(chosen) + 1))
    who = [plain(f"client {description.name(int(client))}") for client in chosen]
    names = [plain(name) for name in description.class_names]
    sizes = [int(size) for size in description.sizes[chosen]]
    group = {"classes": "class", "rarest labels": "rarest label"}.get(description.groups, "target")
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": x,
            "y": rounded(description.skew[chosen]),
            "marker": {"color": palette.line(1)},
            "customdata": who,
            "hovertemplate": "%{customdata}: skew %{y:.2f}<extra></extra>",
            "yaxis": "y3",
        },
        {
            "type": "bar",
            "x": x,
            "y": sizes,
            "marker": {"color": "var(--quiet)"},
            "customdata": who,
            "hovertemplate": "%{customdata}: %{y:,} samples<extra></extra>",
            "yaxis": "y2",
        },
        {
            "type": "heatmap",
            "x": x,
            "y": list(range(len(names))),
            "z": [rounded(100 * row) for row in description.shares[chosen].T],
            "customdata": [[f"{one}, {group} {name}" for one in who] for name in names],
            "colorscale": palette.scale(),
            "zmin": 0,
            "zmax": 100,
            "ygap": 1 if len(names) <= _NAMES_UP_TO else 0,
            "colorbar": {
                "title": {"text": "share of samples, %", "side": "right"},
                "thickness": 12,
                "len": 0.6,
                "y": 0,
                "yanchor": "bottom",
            },
            "hovertemplate": "%{customdata}: %{z:.0f} %<extra></extra>",
        },
    ]
    if not description.lists_classes:
        data.pop()
        names = []
    some = "" if len(x) == description.clients else f" ({len(x)} of {description.clients} shown)"
    step = 1 + (len(names) - 1) // _NAMES_UP_TO
    layout = {
        "xaxis": axis(f"clients by skew{some}, least skewed first", showgrid=False, zeroline=False),
        "yaxis": axis(
            group,
            domain=[0, 0.6],
            tickvals=list(range(0, len(names), step)),
            ticktext=names[::step],
            autorange="reversed",
            automargin=True,
            showgrid=False,
            zeroline=False,
        ),
        "yaxis2": axis("samples", domain=[0.65, 0.8], rangemode="tozero", nticks=3, automargin=True),
        "yaxis3": axis("skew", domain=[0.85, 1], range=[0, max(1.0, float(description.skew.max()))], nticks=3),
        "bargap": 0.1 if len(x) <= 150 else 0,
        "hovermode": "closest",
    }
    alt = f"{description.clients} clients by skew: " + "; ".join(
        f"{name}: {value}" for name, value in description.rows()
    )
    return PlotlyChart(alt + ".", data, layout, max(430, min(700, 300 + 14 * len(names))), title)


def participation_figure(report: ReportData, described: dict[FederationGroup, dict[int, Description]]) -> Figure | None:
    """Return how often clients were invited, by true skew. `described` is each group's federation by seed."""
    charts, drawn, dots = [], [], False
    for group in report.groups:
        lines = [line for line in group.lines if not line.reshapes and _chooses(line)]
        known = described.get(group, {})
        data, summary = [], []
        for line in lines:
            clouds = [_invitations(line, seed, known[seed]) for seed in line.seeds if seed in known]
            if clouds:
                points = clouds[0] if len(lines) <= _POINTS_UP_TO else None
                dots = dots or points is not None
                trend = _binned(np.concatenate([skew for skew, _ in clouds]), np.concatenate([y for _, y in clouds]))
                data.extend(_participation(line, points, trend))
                summary.append(f"{line.label} from {trend[1][0]:.3g} % to {trend[1][-1]:.3g} %")
                drawn.append(line)
        if data:
            layout = {
                "xaxis": axis("true skew of the client (0 to 1)", rangemode="tozero"),
                "yaxis": axis("rounds invited, % of all", rangemode="tozero"),
                "hovermode": "closest",
            }
            where = f" ({group.title})" if group.title else ""
            alt = f"Share of rounds in which clients were invited{where}, from the least to the most skewed: "
            charts.append(PlotlyChart(alt + ", ".join(summary) + ".", data, layout, 320, group.title))
    if not charts:
        return None
    seeds = len({seed for by_seed in described.values() for seed in by_seed})
    caption = (
        f"A line joins the means of eighths of the clients by skew, over {seeds} seed{'s' if seeds > 1 else ''}. "
        + (_about_dots(described) if dots else "")
        + "A level line means that skew plays no role, a falling one that skewed clients are avoided."
    )
    if len(drawn) < len(report.lines):
        caption += " Left out: methods that invite every client, and references that replace the clients."
    return Figure("participation", "Who was invited", caption, charts, keys_of(drawn), len(charts) > 1)


def _about_dots(described: dict[FederationGroup, dict[int, Description]]) -> str:
    most = max(one.clients for by_seed in described.values() for one in by_seed.values())
    which = f"{_DOTS:,} of {most:,} clients are drawn. " if most > _DOTS else ""
    return f"A dot is a client of the first seed. {which}"


def _chooses(line: Line) -> bool:
    """True if some client was not invited in some round."""
    return any(len(row["clients"]) < run.config.clients for run in line.runs for row in run.metrics)


def _invitations(line: Line, seed: int, description: Description) -> tuple[FloatArray, FloatArray]:
    """Return true skew and share of rounds with an invitation, in %, of each client `[clients]`."""
    run = next(run for run in line.runs if run.config.seed == seed)
    counts = np.zeros(description.clients)
    for row in run.metrics:
        counts[row["clients"]] += 1
    return description.skew, 100 * counts / len(run.metrics)


def _binned(skew: FloatArray, share: FloatArray) -> tuple[list[float], list[float]]:
    """Return means over eighths of the clients by skew."""
    parts = np.array_split(np.argsort(skew, kind="stable"), min(_BINS, len(skew)))
    return rounded([skew[part].mean() for part in parts]), rounded([share[part].mean() for part in parts])


def _participation(
    line: Line, points: tuple[FloatArray, FloatArray] | None, trend: tuple[list[float], list[float]]
) -> list[dict[str, Any]]:
    colour, group = palette.line(line.place), f"line-{line.place}"
    traces: list[dict[str, Any]] = []
    if points is not None:
        count = len(points[0])
        shown = np.unique(np.linspace(0, count - 1, min(count, _DOTS)).round().astype(np.int64))
        traces.append(
            {
                "type": "scatter",
                "x": rounded(points[0][shown]),
                "y": rounded(points[1][shown]),
                "mode": "markers",
                "marker": {"color": colour, "size": 6, "opacity": 0.4},
                "customdata": shown.tolist(),
                "cliponaxis": False,
                "hovertemplate": "client %{customdata}: skew %{x:.2f}, %{y:.1f} % of rounds<extra>"
                + plain(line.label)
                + "</extra>",
                "legendgroup": group,
            }
        )
    traces.append(
        {
            "type": "scatter",
            "x": trend[0],
            "y": trend[1],
            "mode": "lines+markers",
            "line": {"color": colour, "dash": palette.stroke(line.place), "width": 2},
            "marker": {"color": colour, "symbol": palette.symbol(line.place), "size": 8},
            "hovertemplate": "skew about %{x:.2f}: %{y:.1f} % of rounds<extra>" + plain(line.label) + "</extra>",
            "legendgroup": group,
        }
    )
    return traces


def dropped_figure(report: ReportData) -> Figure | None:
    """Return the number of dropped replies over rounds, if there are any."""
    charts, drawn = [], []
    for group in report.groups:
        data: list[dict[str, Any]] = []
        for line in group.lines:
            rounds = min(len(run.metrics) for run in line.runs)
            counts = np.mean([[len(row["dropped"]) for row in run.metrics[:rounds]] for run in line.runs], axis=0)
            if counts.any():
                drawn.append(line)
                data.append(
                    {
                        "type": "scatter",
                        "name": plain(line.label),
                        "x": list(range(1, rounds + 1)),
                        "y": rounded(np.cumsum(counts)),
                        "mode": "lines",
                        "line": {
                            "color": palette.line(line.place),
                            "dash": palette.stroke(line.place),
                            "width": 2,
                        },
                        "legendgroup": f"line-{line.place}",
                        "hovertemplate": "%{y:.3g} replies<extra>" + plain(line.label) + "</extra>",
                    }
                )
        if data:
            summary = ", ".join(f"{trace['name']} {trace['y'][-1]:g}" for trace in data)
            layout = {
                "xaxis": axis("round"),
                "yaxis": axis("replies dropped so far", rangemode="tozero"),
                "hovermode": "x unified",
            }
            charts.append(PlotlyChart(f"Replies dropped by the last round: {summary}.", data, layout, 300, group.title))
    if not charts:
        return None
    caption = f"Replies that were lost or rejected, summed over rounds. {seeds_in_words(drawn)}."
    return Figure("dropped", "Dropped replies", caption, charts, keys_of(drawn), len(charts) > 1)


def federation_page(description: Description, path: Path) -> Path:
    """Write the page about one federation."""
    config = description.config
    title = f"{description.clients} clients with {config.dataset.name}, environment {config.environment.name}"
    summary = table(["", ""], description.rows(), caption="What the clients hold", head=False)
    figure = mix_figure([("", description)])
    page = HtmlPage(
        title=f"Covey federation: {title}",
        headline=title,
        lead=f"Skew from {description.skew.min():.2f} to {description.skew.max():.2f}.",
        sections=[Section("summary", "Summary", [summary]), Section("clients", "Clients", [figure])],
    )
    return write_page(page, path)
