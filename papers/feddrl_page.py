"""FedDRL's page, from stored runs: its sections in order, and figures 5 to 8, those that are charts."""

from collections.abc import Callable, Mapping

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate
from papers.feddrl import (
    DELTA,
    FEDERATED,
    METHODS,
    OURS,
    TITLES,
    Data,
    FedDRLScale,
    environment_name,
)
from papers.feddrl_lines import CLUSTERED, DRLLines, best, called, client_loss, environments
from papers.feddrl_tables import (
    PLACE,
    any_time,
    figure_9,
    figure_10,
    impact_factors,
    online,
    place,
    rule,
    table_3,
    table_4,
)
from papers.feddrl_words import evenness_in_words, in_words, opening
from papers.lines import ACCURACY, ROUND
from papers.lines_page import page_of_lines
from papers.pages import Chart, Page, Part, Series, Table, accuracy_series
from papers.plan import Paper
from papers.statistics import on_common_seeds
from papers.store import Store


def page_of(paper: Paper, scale: FedDRLScale, store: Store) -> Page:
    """The page of one scale."""
    title = "FedDRL, a trial of the machinery" if scale.local_only else "FedDRL, reproduced"
    before = (opening, in_words)
    return page_of_lines(paper, scale, store, METHODS, DRLLines, title=title, opening=before, sections=_SECTIONS)


def _figure_5(about: DRLLines) -> list[Part]:
    parts: list[Part] = [
        "Accuracy swings from one evaluation to the next by more than methods differ, so every point is the mean over "
        "the last twentieth of the evaluations of a whole run."
    ]
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        lines = about.lines(name)
        if lines:
            title = f"Fig. 5: {called(data, clients, split)}"
            shown = {TITLES[method]: line for method, line in lines.items()}
            smooth = max(1, about.rounds // data.evaluate_every // 20)
            parts += about.curves(f"figure-5-{name}", title, shown, "", smooth)
    return parts if len(parts) > 1 else [about.missing("Figure 5", "table-3")]


def _figure_6(about: DRLLines) -> list[Part]:
    """Mean and variance of clients' losses, as multiples of FedDRL's."""
    scale = about.scale
    places = [(scale.first, split, scale.many) for split in CLUSTERED]
    places += [(scale.hard, split, scale.few) for split in ("pa", *CLUSTERED)]
    parts: list[Part] = [
        "Loss of the model that clients receive, on their own samples: its mean over the clients of a round and its "
        "variance, as multiples of FedDRL's (below 1 is lower than FedDRL's). The paper draws it for CIFAR-100 with 10 "
        "clients, and finds FedAvg's and FedProx's above 1 after 200 to 300 rounds.",
    ]
    rows = []
    for data, split, clients in places:
        name = environment_name(data, split, clients)
        lines = about.lines(name)
        for figure in ("mean", "variance"):
            found = {method: client_loss(line, figure) for method, line in lines.items()}
            base = found.get(OURS)
            series = []
            for method, curve in found.items():
                if base is None or curve is None or method == OURS:
                    continue
                count = min(len(base[0]), len(curve[0]))
                ratio = _smooth(curve[1][:count]) / _smooth(base[1][:count])
                series.append(
                    Series(TITLES[method], curve[0][:count], ratio.tolist(), place=about.places[TITLES[method]])
                )
            if series:
                title = f"Fig. 6: {figure} of clients' losses relative to FedDRL's, {called(data, clients, split)}"
                parts.append(Chart(f"figure-6-{name}-{figure}", title, ROUND, f"{figure}, relative", series))
        for method, line in lines.items():
            ends = [client_loss(line, figure) for figure in ("mean", "variance", "gap")]
            cells = ["-" if end is None else f"{np.nanmean(end[1][-max(1, len(end[1]) // 20) :]):.3g}" for end in ends]
            rows.append([*place(data, clients, split), TITLES[method], *cells, about.seeds(line)])
    if not rows:
        return [*parts, about.missing("Figure 6", "table-3")]
    columns = (*PLACE, "method", "mean loss", "variance", "gap", "seeds")
    table = Table(columns, rows)
    return [*parts, "Over the last twentieth of the evaluations:", table, *evenness_in_words(about, places)]


def _smooth(values: FloatArray) -> FloatArray:
    """Means over up to 9 neighbouring evaluations: a cohort's losses jump from round to round."""
    width = min(9, len(values))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    smooth: FloatArray = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    return smooth


def _figure_7(about: DRLLines) -> list[Part]:
    scale, data = about.scale, about.scale.hard
    name = environment_name(data, "ce", scale.many)
    values = {float(scale.cohort): "", **{float(cohort): f"cohort{cohort}" for cohort in scale.cohorts}}
    words = (
        f"Best accuracy by the number of clients in a round, {data.title}, {scale.many} clients, CE. The paper finds "
        "that it does not matter in the end, and FedDRL ahead at every K."
    )
    return [words, *_sweep(about, data, name, "K", "figure-7", values)]


def _figure_8(about: DRLLines) -> list[Part]:
    scale, data = about.scale, about.scale.first
    name = environment_name(data, "ce", scale.many)
    values = {**{delta: f"delta{delta:g}" for delta in scale.deltas}, DELTA: ""}
    words = (
        f"Best accuracy by the share of clients in the main group, {data.title}, {scale.many} clients, CE, with the "
        f"agents of δ = {DELTA:g}. The paper finds all methods lower at higher δ, and FedDRL 2 to 3 points ahead at "
        "0.6."
    )
    return [words, *_sweep(about, data, name, "δ", "figure-8", values)]


def _sweep(
    about: DRLLines, data: Data, environment: str, what: str, figure: str, values: Mapping[float, str]
) -> list[Part]:
    """Best accuracy of the federated methods over values of a setting, a method's over the seeds that all its have."""
    rows, series, missing = [], [], False
    for method in FEDERATED:
        lines = on_common_seeds({value: about.line(environment, method, variant) for value, variant in values.items()})
        there = {value: Estimate.of([best(run) for run in line.values()]) for value, line in lines.items() if line}
        missing = missing or len(there) < len(values)
        rows.append([TITLES[method], *(about.best_of(line) for line in lines.values())])
        if there:
            series.append(
                accuracy_series(TITLES[method], list(there), list(there.values()), about.places[TITLES[method]])
            )
    parts: list[Part] = [Table(("method", *(f"{what} = {value:g}" for value in values)), rows)]
    if any(len(one.x) > 1 for one in series):
        title = f"Fig. {figure[-1]}: {data.title}, best accuracy by {what}"
        parts.append(Chart(figure, title, what, ACCURACY, series, "both"))
    return [*parts, about.missing(f"Figure {figure[-1]}", figure)] if missing else parts


_SECTIONS: dict[str, Callable[[DRLLines], list[Part]]] = {
    "Table 3: best accuracy": table_3,
    "Accuracy at any time": any_time,
    "Figure 5: accuracy over rounds": _figure_5,
    "Figure 6: how evenly clients are served": _figure_6,
    "How much clients count": impact_factors,
    "FedDRL for sets without learning": rule,
    "Agents without a first stage": online,
    "Figure 7: clients in a round": _figure_7,
    "Figure 8: size of the main group": _figure_8,
    "Figure 9: time on the server": figure_9,
    "Figure 10: rounds to the lowest of the best": figure_10,
    "Table 4: shards": table_4,
}
