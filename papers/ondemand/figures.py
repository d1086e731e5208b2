"""Figures 4 and 5 of On-Demand FL."""

from covey.job.comparison.statistics import Estimate
from papers.curves import thinned
from papers.measurements import GUESS
from papers.ondemand.results import NAMES, TUNED, ByTarget, OnDemandResults, mean_over_targets
from papers.ondemand.scales import BASELINE, LATE, MEAN, MEAN_BASE, OURS, SAME, TITLES, TRUE
from papers.ondemand.tables import methods_at
from papers.ondemand.text import PROSE
from papers.page import ROUND, Chart, Part, Series, accuracy_series
from papers.store import OWN_MIX

_PLACES = {
    BASELINE: 0, "cfl": 1, "mocha-deep": 2, "fedfomo": 3, OURS: 4, TRUE: 5,
    SAME: 6, "mocha": 8, "fedfomo-weighted": 9, LATE: 10, "mocha-trained": 14, MEAN: 16,
}  # fmt: skip
"""Method → index of its colour. There are six colours; from the seventh on they repeat with another stroke, which forms
of one method use."""


def figure_4(results: OnDemandResults) -> list[Part]:
    """Accuracy on targets over rounds."""
    parts: list[Part] = [PROSE("figure-4")]
    for place in results.drawn:
        for column in ("td1", "td3", OWN_MIX):
            series = []
            for method in methods_at(results, place):
                curve = _mean_curve(results.curves(place, method, column))
                if curve is not None:
                    shift = place.task.branch if method in TUNED else 0
                    rounds, estimates = curve
                    at = [t + shift for t in rounds]
                    series.append(accuracy_series(TITLES[method], at, estimates, _PLACES[method]))
            if series:
                name = f"figure-4-{place.name}-{column}"
                title = f"Fig. 4: {place.title}, {NAMES[column]}"
                parts.append(Chart(name, title, ROUND, "accuracy on the target (%)", series))
            else:
                parts.append(results.missing(f"Figure 4, {place.title}, {NAMES[column]}", "figure-4", place))
    return parts


def _mean_curve(found: ByTarget) -> tuple[list[int], list[Estimate]] | None:
    """Return accuracy at the rounds that all seeds have evaluated: mean over a seed's targets, then over seeds."""
    if not found:
        return None
    curves = [mean_over_targets(list(targets.values())) for targets in found.values()]
    common = set.intersection(*(set(curve.evaluations.astype(int).tolist()) for curve in curves))
    rounds = thinned(sorted(common), 100)
    values = [[float(curve.accuracy[curve.evaluations == at][0]) for curve in curves] for at in rounds]
    return rounds, [Estimate.of(row) for row in values]


def figure_5(results: OnDemandResults) -> list[Part]:
    """Errors of clients' estimates."""
    parts: list[Part] = [PROSE("figure-5")]
    for place in results.drawn:
        runs = results.measured(place) or results.measured(place, MEAN_BASE)
        task = place.task
        shown = "" if not runs or runs[0].method == BASELINE else ", inference from the mean gradient"
        asked = (
            ("after one round", "surveyed", 1),
            (f"round {task.estimated}", "learned", task.estimated),
            (f"round {task.branch}", "learned", task.branch),
            ("uniform guess", GUESS, 1),
        )
        series = []
        for label, estimator, at in asked:
            for one in runs[0].measurements if runs else []:
                if one["round"] == at:
                    errors = sorted(error for error in one["errors"].get(estimator, ()) if error is not None)
                    series.append(Series(label, list(range(1, len(errors) + 1)), errors))
        if series:
            title = f"Fig. 5: {place.title}, error of each client's estimate{shown}"
            parts.append(Chart(f"figure-5-{place.name}", title, "clients by error", "n·MAE", series))
        else:
            parts.append(results.missing(f"Figure 5, {place.title}", "figure-5", place))
    return parts
