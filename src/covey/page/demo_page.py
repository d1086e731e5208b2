"""The page about the demo: three answers as sentences, each with a picture and the command for data of one's own."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.job.analysis import STANDS_OUT
from covey.job.comparison.statistics import REFERENCE, Estimate, half_interval
from covey.job.demo import Demo, OddClients, SiteModel, SkewCost
from covey.job.demo.site_model import MIX, ROUNDS
from covey.job.demo.skew_cost import BASE
from covey.job.demo.wording import listed
from covey.job.result_text import or_dash
from covey.page import palette
from covey.page.figures import Figure, LegendEntry, PlotlyChart, axis, plain, rounded, span, spread
from covey.page.html_page import HtmlPage, Markup, Section, escape, table, write_page

_USUAL, _FLIPPED, _MISTAKEN = "var(--quiet)", palette.line(1), palette.line(0)

_BEFORE, _AFTER = "var(--quiet)", palette.line(0)

_LINES = {"covey": 0, "fedacs": 1, REFERENCE: 2, BASE: 5}
"""Method → the place of its colour."""

_SHORT = {BASE: "FedAvg", "covey": "covey", "fedacs": "FedACS", REFERENCE: "FedAvg without skew"}


def demo_page(demo: Demo, path: Path) -> Path:
    """Write the page about the demo."""
    federations = demo.skew.federations
    places = ("odd", "cost", "site")
    questions = [answer.question for answer in demo.answers]
    page = HtmlPage(
        title="Covey: three answers about clients whose data differ",
        headline="Three answers about clients whose data differ",
        lead=f"Measured just now on handwritten digits, with seed {demo.seed}. ± is a 95 % interval (Student's t) over "
        f"{federations} federations, each with its own split and first model; a difference whose interval contains "
        "zero is called noise.",
        sections=[
            Section("answers", "Answers", [_answers(demo, places)]),
            Section(places[0], questions[0], [odd_figure(demo.odd), _command(demo.odd.command)]),
            Section(
                places[1], questions[1], [skew_figure(demo.skew), _methods(demo.skew), _command(demo.skew.command)]
            ),
            Section(places[2], questions[2], [site_figure(demo.site), _command(demo.site.command, _BASE_RUN)]),
        ],
        footer=f"Runs, records and models lie beside this page. The same again: covey demo --seed {demo.seed}",
    )
    return write_page(page, path)


_BASE_RUN = "covey run --method covey --dataset mine.csv --environment natural --out runs/mine"


def odd_figure(odd: OddClients) -> Figure:
    """Return a chart of what class mixes do not explain against skew, a dot per client; named beyond the limit."""
    analysis = odd.analysis
    strange = analysis.strangeness
    assert strange is not None
    found, flipped = set(odd.found), set(odd.flipped)
    usual = set(analysis.clients.tolist()) - found - flipped
    kinds = [
        ("labels as they should be", _USUAL, "circle", usual),
        ("stands out, labels flipped", _FLIPPED, "circle", found & flipped),
        ("stands out, labels sound", _MISTAKEN, "diamond", found - flipped),
        ("labels flipped, unnoticed", _FLIPPED, "circle-open", flipped - found),
    ]
    data: list[dict[str, Any]] = []
    keys = []
    for name, colour, symbol, members in kinds:
        here = [at for at in np.argsort(analysis.skew).tolist() if int(analysis.clients[at]) in members]
        if not here:
            continue
        clients = [int(analysis.clients[at]) for at in here]
        named = colour != _USUAL
        data.append(
            {
                "type": "scatter",
                "x": rounded(analysis.skew[here]),
                "y": rounded(strange[here]),
                "mode": "markers+text" if named else "markers",
                "marker": {"color": colour, "size": 10 if named else 7, "symbol": symbol},
                "text": [f"<b>{client}</b>" for client in clients] if named else [""] * len(clients),
                # Neighbours are named above and below, so that names do not meet.
                "textposition": [("top center", "bottom center")[place % 2] for place in range(len(here))],
                "textfont": {"size": 13, "color": "var(--ink)"},
                "customdata": [f"client {client}, {name}" for client in clients],
                "hovertemplate": "%{customdata}: skew %{x:.2f}, stands out by %{y:.1f}<extra></extra>",
                "cliponaxis": False,
            }
        )
        keys.append(LegendEntry(name, colour))
    right = float(analysis.skew.max()) * 1.05
    data.append(
        {
            "type": "scatter",
            "x": [0.0, right],
            "y": [STANDS_OUT, STANDS_OUT],
            "mode": "lines",
            "line": {"color": "var(--ink)", "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
        }
    )
    top = float(strange.max())
    layout = {
        "xaxis": axis("estimated skew", range=rounded([-0.02, right + 0.02])),
        "yaxis": axis("stands out by", range=rounded([min(-2.0, float(strange.min())) - 2, top * 1.12 + 1])),
        "hovermode": "closest",
    }
    caption = (
        f"A dot is a client, named beyond the dashed line ({STANDS_OUT:g}). Up: how far its gradient is from what its "
        "class mix explains, in median absolute deviations. Right: skew, which by itself is no fault. Each client sent "
        f"{analysis.rounds} gradients of a fresh model; nothing was trained, and it took {analysis.seconds:.1f} s."
    )
    chart = PlotlyChart(odd.sentence, data, layout, 380)
    return Figure("odd-clients", "Who stands out, against skew", caption, [chart], keys, wide=True)


def skew_figure(skew: SkewCost) -> Figure:
    """Return accuracy over rounds with bands, and the differences from FedAvg with their intervals."""
    federations = skew.federations
    caption = (
        f"Mean over {federations} federations; bands and bars' ends are 95 % intervals. 40 clients with two digits "
        "each, 60 % of them with the same two; 6 train in a round. Without skew, the same clients hold all digits. The "
        "invited majority of the table is the share of invitations that went to clients with the most common digits."
    )
    keys = [
        LegendEntry(_SHORT[method], palette.line(place), line=place)
        for method, place in sorted(_LINES.items(), key=lambda one: one[1])
    ]
    charts = [_curves(skew), _differences(skew)]
    return Figure("skew-cost", "Accuracy of each method", caption, charts, keys, wide=True)


def _curves(skew: SkewCost) -> PlotlyChart:
    data: list[dict[str, Any]] = []
    reach: list[float] = []
    for method, place in _LINES.items():
        values = 100 * skew.curves[method]
        x = list(range(1, values.shape[1] + 1))
        around = spread(values)
        if around is not None:
            low, high = np.maximum(around[0], 0.0), np.minimum(around[1], 100.0)
            reach += [*low.tolist(), *high.tolist()]
            data.append(
                {
                    "type": "scatter",
                    "x": [*x, *reversed(x)],
                    "y": rounded([*high, *low[::-1]]),
                    "mode": "lines",
                    "fill": "toself",
                    "fillcolor": palette.band(place),
                    "line": {"width": 0, "color": palette.line(place)},
                    "hoverinfo": "skip",
                    "legendgroup": f"line-{place}",
                }
            )
        data.append(
            {
                "type": "scatter",
                "x": x,
                "y": rounded(values.mean(axis=0)),
                "mode": "lines",
                "line": {"color": palette.line(place), "width": 2.5},
                "hovertemplate": f"%{{y:.1f}} %<extra>{plain(_SHORT[method])}</extra>",
                "legendgroup": f"line-{place}",
            }
        )
    layout = {
        "xaxis": axis("round"),
        "yaxis": axis("test accuracy, %", range=span(reach)),
        "hovermode": "x unified",
    }
    return PlotlyChart(f"Accuracy over rounds. {skew.sentence}", data, layout, 340, "Over rounds")


def _differences(skew: SkewCost) -> PlotlyChart:
    """Return bars of each method's difference from FedAvg, in points."""
    found = [(method, gain) for method, gain in skew.gains.items()] + [(REFERENCE, skew.cost)]
    data: list[dict[str, Any]] = []
    ends = [0.0]
    for method, gain in reversed(found):
        mean, half = 100 * gain.estimate.mean, 100 * (gain.estimate.mean - (gain.estimate.low or 0.0))
        ends += [mean - half, mean + half]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "x": rounded([mean]),
                "y": [plain(_SHORT[method]).replace(" without", "<br>without")],
                "width": [0.6],
                "marker": {"color": palette.line(_LINES[method])},
                "error_x": {
                    "type": "data",
                    "array": rounded([half]),
                    "color": "var(--ink)",
                    "thickness": 1.5,
                    "width": 5,
                },
                "hovertemplate": f"{plain(_SHORT[method])}: {gain.signed} points<extra></extra>",
                "legendgroup": f"line-{_LINES[method]}",
            }
        )
    margin = 0.06 * (max(ends) - min(ends))
    layout = {
        "xaxis": axis("points of accuracy over FedAvg", range=rounded([min(ends) - margin, max(ends) + margin])),
        "yaxis": {"automargin": True, "showgrid": False, "type": "category"},
        "hovermode": "closest",
    }
    text = "; ".join(f"{_SHORT[method]} {gain.signed} points" for method, gain in found)
    return PlotlyChart(f"Differences from FedAvg: {text}.", data, layout, 340, "Differences from FedAvg")


def _methods(skew: SkewCost) -> Markup:
    against = {**skew.gains, REFERENCE: skew.cost}
    rows = [
        [
            _SHORT[method],
            f"{100 * Estimate.of(skew.accuracies[method].tolist()).mean:.1f} %",
            against[method].signed if method in against else "-",
            or_dash(skew.majority[method], "{:.0%}"),
        ]
        for method in skew.accuracies
    ]
    caption = f"Mean of {skew.rounds_in_words}"
    return table(["method", "accuracy", "over FedAvg, points", "invited majority"], rows, caption, figures=True)


def site_figure(site: SiteModel) -> Figure:
    """Return accuracy before and after, on each digit of the mix and on the mix."""
    names = [*(f"{label}<br>{share:.0%}" for label, share in MIX.items()), "the mix"]
    data: list[dict[str, Any]] = []
    for name, colour in (("before", _BEFORE), ("after", _AFTER)):
        values = 100 * np.column_stack([site.by_class[name][:, list(MIX)], site.accuracies[name]])
        mean, half = values.mean(axis=0), half_interval(values)
        data.append(
            {
                "type": "bar",
                "x": names,
                "y": rounded(mean),
                "marker": {"color": colour},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": rounded(np.minimum(half, 100 - mean)),
                    "arrayminus": rounded(half),
                    "color": "var(--ink)",
                    "thickness": 1.5,
                    "width": 5,
                },
                "hovertemplate": f"{name}: %{{y:.1f}} %<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": axis("test accuracy, %", range=[0, 102]),
        "barmode": "group",
        "hovermode": "closest",
    }
    used = Estimate.of([float(len(one.composition.clients)) for one in site.tailored]).mean
    caption = (
        f"Mean over {len(site.jobs)} federations, with 95 % intervals; below a digit is its share at the site. The "
        f"model is that of covey above, trained for {ROUNDS} more rounds on clients that together hold the site's mix: "
        f"on average {used:.1f} of {site.jobs[0].composed.clients}, found by one gradient of each. {_elsewhere(site)}"
    )
    keys = [LegendEntry("the federation's model", _BEFORE), LegendEntry("the model on demand", _AFTER)]
    chart = PlotlyChart(site.sentence, data, layout, 360)
    return Figure("site-model", f"Digits {listed(list(MIX))}, before and after", caption, [chart], keys, wide=True)


def _elsewhere(site: SiteModel) -> str:
    """Say what becomes of the digits that the site does not see."""
    others = [label for label in range(site.by_class["before"].shape[1]) if label not in MIX]

    def mean(values: FloatArray) -> float:
        return float(100 * values[:, others].mean())

    before, after = mean(site.by_class["before"]), mean(site.by_class["after"])
    return f"It is for this site alone: on the other digits its accuracy is {after:.1f} %, and before {before:.1f} %."


def _answers(demo: Demo, places: tuple[str, ...]) -> Markup:
    items = "".join(
        f'<li><a href="#{place}">{escape(answer.question)}</a><br>{_unbroken(answer.sentence)}</li>'
        for place, answer in zip(places, demo.answers, strict=True)
    )
    return Markup(f'<ol class="verdicts answers">{items}</ol>')


def _unbroken(sentence: str) -> str:
    """Return a sentence as HTML; a line does not end within a figure and its interval."""
    return escape(sentence).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _command(command: str, before: str | None = None) -> Markup:
    lines = [before, command] if before else [command]
    # A line breaks between words, not at their hyphens.
    commands = "\n".join(" ".join(f"<span>{escape(word)}</span>" for word in line.split()) for line in lines)
    return Markup(f'<div><p class="own">With your data:</p><pre><code>{commands}</code></pre></div>')
