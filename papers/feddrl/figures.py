"""Figures 5 to 8 of FedDRL, those that are charts."""

from collections.abc import Mapping

import numpy as np

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate, best_accuracy
from papers.curves import on_common_seeds
from papers.feddrl.results import CLUSTERED, FedDRLResults, client_loss, environment_title, environments
from papers.feddrl.scales import DELTA, FEDERATED, OURS, TITLES, Data, environment_name
from papers.feddrl.tables import PLACE, place_cells
from papers.feddrl.text import PROSE, evenness_sentences
from papers.page import ACCURACY, ROUND, Chart, Part, Series, Table, accuracy_series


def figure_5(results: FedDRLResults) -> list[Part]:
    """Accuracy over rounds."""
    parts: list[Part] = []
    for data, split, clients, name in environments(results.scale, ("pa", "ce", "cn")):
        lines = results.lines(name)
        if lines:
            title = f"Fig. 5: {environment_title(data, clients, split)}"
            shown = {TITLES[method]: line for method, line in lines.items()}
            smooth = max(1, results.rounds // data.evaluate_every // 20)
            parts += results.curves(f"figure-5-{name}", title, shown, "", smooth)
    return [PROSE("figure-5"), *parts] if parts else [results.missing("Figure 5", "table-3")]


def figure_6(results: FedDRLResults) -> list[Part]:
    """Mean and variance of clients' losses, as multiples of FedDRL's."""
    scale = results.scale
    places = [(scale.first, split, scale.many) for split in CLUSTERED]
    places += [(scale.hard, split, scale.many) for split in CLUSTERED if scale.hard is not scale.first]
    places += [(scale.hard, split, scale.few) for split in ("pa", *CLUSTERED)]
    charts: list[Part] = []
    rows = []
    for data, split, clients in places:
        name = environment_name(data, split, clients)
        charts += _loss_charts(results, name, environment_title(data, clients, split))
        for method, line in results.lines(name).items():
            ends = [client_loss(line, figure) for figure in ("mean", "variance", "gap")]
            cells = ["-" if end is None else f"{np.nanmean(end[1][-max(1, len(end[1]) // 20) :]):.3g}" for end in ends]
            rows.append([*place_cells(data, clients, split), TITLES[method], *cells, results.seeds(line)])
    parts: list[Part] = [PROSE("figure-6"), *charts]
    if not rows:
        return [*parts, results.missing("Figure 6", "table-3")]
    table = Table((*PLACE, "method", "mean loss", "variance", "gap", "seeds"), rows)
    return [*parts, PROSE("figure-6-table"), table, *evenness_sentences(results, places)]


def _loss_charts(results: FedDRLResults, name: str, environment: str) -> list[Part]:
    """Charts of one environment: mean and variance of clients' losses over FedDRL's."""
    charts: list[Part] = []
    for figure in ("mean", "variance"):
        found = {method: client_loss(line, figure) for method, line in results.lines(name).items()}
        base = found.pop(OURS, None)
        series = []
        for method, curve in found.items():
            if base is None or curve is None:
                continue
            count = min(len(base[0]), len(curve[0]))
            ratio = _smooth(curve[1][:count]) / _smooth(base[1][:count])
            place = results.places[TITLES[method]]
            series.append(Series(TITLES[method], curve[0][:count], ratio.tolist(), place=place))
        if series:
            title = f"Fig. 6: {figure} of clients' losses relative to FedDRL's, {environment}"
            charts.append(Chart(f"figure-6-{name}-{figure}", title, ROUND, f"{figure}, relative", series))
    return charts


def _smooth(values: FloatArray) -> FloatArray:
    """Average up to 9 neighbouring evaluations: a cohort's losses jump from round to round."""
    width = min(9, len(values))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    smooth: FloatArray = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    return smooth


def figure_7(results: FedDRLResults) -> list[Part]:
    """Best accuracy by clients in a round."""
    scale, data = results.scale, results.scale.hard
    name = environment_name(data, "ce", scale.many)
    values = {float(scale.cohort): "", **{float(cohort): f"cohort{cohort}" for cohort in scale.cohorts}}
    text = PROSE("figure-7", data=data.title, scale=scale)
    return [text, *_sweep(results, data, name, "K", "figure-7", values)]


def figure_8(results: FedDRLResults) -> list[Part]:
    """Best accuracy by size of the main group."""
    scale, data = results.scale, results.scale.first
    name = environment_name(data, "ce", scale.many)
    values = {**{delta: f"delta{delta:g}" for delta in scale.deltas}, DELTA: ""}
    text = PROSE("figure-8", data=data.title, scale=scale, delta=DELTA)
    return [text, *_sweep(results, data, name, "δ", "figure-8", values)]


def _sweep(
    results: FedDRLResults, data: Data, environment: str, setting: str, figure: str, values: Mapping[float, str]
) -> list[Part]:
    """Return best accuracy over values of a setting, each method over the seeds that all its values have."""
    rows, series, missing = [], [], False
    for method in FEDERATED:
        lines = on_common_seeds(
            {value: results.line(environment, method, variant) for value, variant in values.items()}
        )
        found = {
            value: Estimate.of([best_accuracy(run) for run in line.values()]) for value, line in lines.items() if line
        }
        missing = missing or len(found) < len(values)
        rows.append([TITLES[method], *(results.best(line) for line in lines.values())])
        if found:
            place = results.places[TITLES[method]]
            series.append(accuracy_series(TITLES[method], list(found), list(found.values()), place))
    parts: list[Part] = [Table(("method", *(f"{setting} = {value:g}" for value in values)), rows)]
    if any(len(one.x) > 1 for one in series):
        title = f"Fig. {figure[-1]}: {data.title}, best accuracy by {setting}"
        parts.append(Chart(figure, title, setting, ACCURACY, series, "both"))
    return [*parts, results.missing(f"Figure {figure[-1]}", figure)] if missing else parts
