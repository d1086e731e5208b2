"""The page about an analysis: clients by estimated skew, confidence, outliers, and the truth where known."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import IntArray
from covey.job.analysis import STANDS_OUT, Analysis
from covey.job.result_text import CLIENT_FIGURES, analysis_rows
from covey.page import palette
from covey.page.figures import Figure, LegendEntry, PlotlyChart, axis, plain, rounded
from covey.page.html_page import HtmlPage, Markup, Section, folded, table, write_page

_COLUMNS = 400
"""Largest number of clients drawn."""

_NAMED = 100
"""Largest number of clients that are all named on the axis."""

_LISTED = 1_000
"""Largest number of clients listed."""

_USUAL, _ODD, _OUTLIER = "var(--quiet)", palette.line(0), palette.line(1)


def analysis_page(analysis: Analysis, path: Path) -> Path:
    """Write the page about an analysis."""
    config = analysis.config
    title = f"{len(analysis.clients)} clients with {config.dataset.name}, environment {config.environment.name}"
    summary = table(["", ""], analysis_rows(analysis), caption="Results", head=False)
    clients = [by_skew(analysis), *([against_truth(analysis)] if analysis.truth is not None else [])]
    page = HtmlPage(
        title=f"Covey analysis: {title}",
        headline=f"{analysis.finding}.",
        lead=f"{title}. {analysis.verdict}",
        sections=[
            Section("summary", "Summary", [summary]),
            Section("clients", "Clients", clients),
            Section("figures", "All figures", [folded("Figures of each client", _listed(analysis))]),
        ],
        notices=analysis.notes,
        footer="No client trained, and no sample left its client. Anyone who receives the gradient of an untrained "
        "model can compute a client's class shares from it nearly exactly.",
    )
    return write_page(page, path)


def by_skew(analysis: Analysis) -> Figure:
    """Return rows over the clients, the most skewed first: skew, confidence, and distance unexplained."""
    chosen = _sample(analysis)
    x = list(range(1, len(chosen) + 1))
    who = [_hover_text(analysis, at) for at in chosen.tolist()]
    colours = [_colour(analysis, at) for at in chosen.tolist()]
    rows = [_row("estimated skew" if analysis.measure == "class mix" else "distance", analysis.skew[chosen])]
    caption = [_skew_text(analysis)]
    sure, strange = analysis.confidence, analysis.strangeness
    if sure is not None:
        rows.append(_row("largest difference", sure.deviation[chosen], limit=rounded(sure.limit[chosen])))
        caption.append(
            "Largest difference: in the share of the class in which a client differs most from everyone. Beyond the "
            f"line it is odd; the chance of any false alarm is at most {analysis.level:.0%}."
        )
    if strange is not None:
        cut = [STANDS_OUT] * len(x)
        rows.append(_row("stands out by", strange[chosen], limit=cut))
        caption.append(_outlier_text(analysis) + f" Outliers are beyond {STANDS_OUT:g} deviations.")
    data: list[dict[str, Any]] = []
    some = "" if len(x) == len(analysis.clients) else f" ({len(x)} of {len(analysis.clients)} shown)"
    layout: dict[str, Any] = {
        "xaxis": axis(
            f"clients{some}, most skewed first",
            **_ticks(analysis, chosen),
            showgrid=False,
            zeroline=False,
            anchor=_axis(len(rows)),
        ),
        "bargap": 0.1 if len(x) <= 150 else 0,
        "hovermode": "closest",
    }
    height = 0.92 / len(rows)
    for place, row in enumerate(rows, start=1):
        top = 1 - (place - 1) / len(rows)
        layout["yaxis" if place == 1 else f"yaxis{place}"] = axis(
            row["title"], domain=[max(0.0, top - height), top], nticks=5, automargin=True
        )
        data.append(
            {
                "type": "bar",
                "x": x,
                "y": row["values"],
                "marker": {"color": colours},
                "customdata": who,
                "hovertemplate": "%{customdata}<extra></extra>",
                "yaxis": _axis(place),
            }
        )
        if row["limit"] is not None:
            data.append(
                {
                    "type": "scatter",
                    "x": x,
                    "y": row["limit"],
                    "mode": "lines",
                    "line": {"color": "var(--ink)", "width": 1.5, "dash": "dash", "shape": "hvh"},
                    "hoverinfo": "skip",
                    "yaxis": _axis(place),
                }
            )
    first, last = analysis.order[0], analysis.order[-1]
    alt = (
        f"Estimated skew of {len(analysis.clients)} clients, from {analysis.skew[first]:.2f} "
        f"(client {analysis.name(int(first))}) to {analysis.skew[last]:.2f} (client {analysis.name(int(last))}). "
        + analysis.verdict
    )
    keys = [LegendEntry("no finding", _USUAL)]
    if sure is not None:
        keys.append(LegendEntry("odd class mix", _ODD))
    if strange is not None:
        keys.append(LegendEntry("outlier", _OUTLIER))
    chart = PlotlyChart(alt, data, layout, 200 + 140 * len(rows))
    return Figure("skew", "Clients by estimated skew", " ".join(caption), [chart], keys, wide=True)


def against_truth(analysis: Analysis) -> Figure:
    """Return a chart of estimated against true skew."""
    assert analysis.truth is not None
    data = []
    flagged = np.where(analysis.outlier, 2, np.where(analysis.odd, 1, 0))
    for kind, symbol in enumerate(("circle", "circle", "diamond")):
        here = np.flatnonzero(flagged == kind)
        if len(here):
            data.append(
                {
                    "type": "scatter",
                    "x": rounded(analysis.truth[here]),
                    "y": rounded(analysis.skew[here]),
                    "mode": "markers",
                    "marker": {"color": (_USUAL, _ODD, _OUTLIER)[kind], "size": 8, "symbol": symbol},
                    "customdata": [_hover_text(analysis, at) for at in here.tolist()],
                    "hovertemplate": "%{customdata}, truly %{x:.2f}<extra></extra>",
                    "cliponaxis": False,
                }
            )
    layout = {
        "xaxis": axis("true skew", rangemode="tozero"),
        "yaxis": axis("estimated skew" if analysis.measure == "class mix" else "distance", rangemode="tozero"),
        "hovermode": "closest",
    }
    known = analysis.spearman
    found = "Ranks cannot be compared here." if known is None else f"Spearman's rank correlation is {known:.2f}."
    caption = (
        f"{found} True skew is the environment's own parameter (α) where it has one, else the distance of a client's "
        "class mix from the overall mix; the analysis does not see it."
    )
    alt = f"Estimated against true skew of {len(analysis.clients)} clients. {found}"
    return Figure("truth", "Against the truth", caption, [PlotlyChart(alt, data, layout, 360)])


def _ticks(analysis: Analysis, chosen: IntArray) -> dict[str, Any]:
    """Return the names of the clients as marks of the axis; of very many, those of the outliers alone."""
    named = [place for place, at in enumerate(chosen.tolist()) if len(chosen) <= _NAMED or analysis.outlier[at]]
    return {
        "tickmode": "array",
        "tickvals": [place + 1 for place in named],
        "ticktext": [plain(analysis.name(int(chosen[place]))) for place in named],
        "tickangle": 0 if len(chosen) <= 20 and all(len(analysis.name(int(at))) < 4 for at in chosen) else -90,
        "tickfont": {"size": 10},
        "automargin": True,
    }


def _row(title: str, values: Any, limit: list[float] | None = None) -> dict[str, Any]:
    return {"title": title, "values": rounded(values), "limit": limit}


def _axis(place: int) -> str:
    return "y" if place == 1 else f"y{place}"


def _sample(analysis: Analysis) -> IntArray:
    """Return at most `_COLUMNS` positions, evenly spread, the most skewed first."""
    count = len(analysis.clients)
    return analysis.order[np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).round().astype(np.int64))]


def _colour(analysis: Analysis, at: int) -> str:
    return _OUTLIER if analysis.outlier[at] else _ODD if analysis.odd[at] else _USUAL


def _hover_text(analysis: Analysis, at: int) -> str:
    """Return the hover text of a client."""
    text = f"client {analysis.name(at)}: skew {analysis.skew[at]:.2f}, {analysis.samples[at]:,} samples"
    if analysis.odd[at]:
        text += ", odd"
    return plain(text + (", outlier" if analysis.outlier[at] else ""))


def _skew_text(analysis: Analysis) -> str:
    if analysis.measure == "class mix":
        return "Estimated skew: distance of a client's class mix from everyone's, 0 to 1, computed from its gradient."
    return "Distance: of a client's insight from the mean insight, without a unit."


def _outlier_text(analysis: Analysis) -> str:
    what = "in what its class mix does not explain" if analysis.confidence is not None else "in its score Q"
    return f"Stands out by: how far a client is above the median {what}, in median absolute deviations."


def _listed(analysis: Analysis) -> Markup:
    truth = analysis.truth is not None
    columns = [name for figure, name in CLIENT_FIGURES.items() if truth or figure != "true_skew"]
    rows = [
        [
            one["name"],
            f"{one['samples']:,}",
            f"{one['skew']:.3f}",
            f"{one['score']:.4g}",
            str(one["score_rank"]),
            *(
                "-" if one[name] is None else form.format(one[name])
                for name, form in (
                    ("confidence", "{:.1%}"),
                    ("deviation", "{:.3f}"),
                    ("limit", "{:.3f}"),
                    ("p_value", "{:.2g}"),
                    ("log_product", "{:.1f}"),
                    ("strangeness", "{:.1f}"),
                )
            ),
            *([f"{one['true_skew']:.3f}"] if truth else []),
            ", ".join(name for name in ("odd", "outlier") if one[name]),
        ]
        for one in analysis.findings_first()[:_LISTED]
    ]
    more = len(analysis.clients) - len(rows)
    caption = "Clients: findings first, then the most skewed" + (f"; {more:,} more are not listed" if more > 0 else "")
    return table(columns, rows, caption, figures=True)
