"""On-Demand FL's tables and figures from stored runs, the paper's numbers beside ours."""

from collections.abc import Callable

from covey.job.comparison.statistics import Estimate
from papers.lines import ROUND
from papers.measuring import GUESS
from papers.ondemand import BASELINE, LATE, OURS, TITLES, TRUE, OnDemandScale
from papers.ondemand_lines import NAMES, About, ByTarget, together
from papers.ondemand_tables import all_local, methods_at, table_2, table_3, table_4, table_5
from papers.ondemand_words import in_words, opening
from papers.pages import (
    ORIGIN,
    Chart,
    Page,
    Part,
    Series,
    Table,
    accuracy_series,
    assembled,
    command_of,
    origin,
    usable,
)
from papers.plan import Paper
from papers.statistics import thinned
from papers.store import OWN_MIX, Store

_PLACES = {BASELINE: 0, "cfl": 1, "mocha-deep": 2, "fedfomo": 3, OURS: 4, TRUE: 5, "mocha": 8, LATE: 10}
"""Of methods among the colours, of which there are six: a seventh place is the first colour with another stroke. So the
two forms of MOCHA share one, and so do models on demand by early and by late estimates."""


def page_of(paper: Paper, scale: OnDemandScale, store: Store) -> Page:
    """The page of one scale."""
    kept, notes = usable(paper, scale, store)
    about = About(scale, kept, command_of(paper, scale))
    title = "On-Demand FL, a trial of the machinery" if scale.local_only else "On-Demand FL, reproduced"
    return assembled(scale, title, about, [*opening(about), *in_words(about)], _SECTIONS, _runs(about), notes)


def _figure_4(about: About) -> list[Part]:
    parts: list[Part] = [
        "Accuracy on the target over rounds, mean over seeds; fine-tuning begins where its lines begin. The paper "
        "shows that it rises above all others within a few rounds, most of all on Local; only the curves are given."
    ]
    for place in about.drawn:
        for column in ("td1", "td3", OWN_MIX):
            series = []
            for method in methods_at(about, place):
                line = _mean_curve(about.curves(place, method, column))
                if line is not None:
                    shift = place.task.branch if method in (OURS, LATE, TRUE) else 0
                    rounds, estimates = line
                    at = [t + shift for t in rounds]
                    series.append(accuracy_series(TITLES[method], at, estimates, _PLACES[method]))
            if series:
                name = f"figure-4-{place.name}-{column}"
                title = f"Fig. 4: {place.title}, {NAMES[column]}"
                parts.append(Chart(name, title, ROUND, "accuracy on the target (%)", series))
            else:
                parts.append(about.missing(f"Figure 4, {place.title}, {NAMES[column]}", "figure-4", place))
    return parts


def _mean_curve(found: ByTarget) -> tuple[list[int], list[Estimate]] | None:
    """Accuracy at rounds that all seeds have evaluated: the mean over a seed's targets, then over seeds."""
    if not found:
        return None
    curves = [together(list(targets.values())) for targets in found.values()]
    rounds = thinned(sorted(set.intersection(*(set(curve.rounds.astype(int).tolist()) for curve in curves))), 100)
    return rounds, [Estimate.of([float(curve.accuracy[curve.rounds == at][0]) for curve in curves]) for at in rounds]


def _figure_5(about: About) -> list[Part]:
    words = (
        "n·MAE of each client's estimate, clients in order of it, one seed: by the predictor after one round and all "
        "clients asked, at the round that clients are composed by, and at the branch. The paper shows the differences "
        "of each client and class as colours, before and after training, without numbers."
    )
    parts: list[Part] = [words]
    for place in about.drawn:
        runs = about.measured(place)
        task = place.task
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
            title = f"Fig. 5: {place.title}, error of each client's estimate"
            parts.append(Chart(f"figure-5-{place.name}", title, "clients by error", "n·MAE", series))
        else:
            parts.append(about.missing(f"Figure 5, {place.title}", "figure-5", place))
    return parts


def _runs(about: About) -> Part:
    """Where the numbers come from; the runs of all targets in one row."""
    places = sorted({(result.environment, result.method) for result in about.store})
    if not places:
        return "None yet."
    rows = []
    for environment, method in places:
        runs = [result for result in about.store if (result.environment, result.method) == (environment, method)]
        rows.append(
            [
                environment,
                method,
                str(len({result.variant for result in runs})) if runs[0].branch else "-",
                ", ".join(map(str, sorted({result.seed for result in runs}))),
                f"{sum(result.finished for result in runs)} of {len(runs)}",
                *origin(runs),
            ]
        )
    return Table(("environment", "method", "targets", "seeds", "runs at their end", *ORIGIN), rows)


_SECTIONS: dict[str, Callable[[About], list[Part]]] = {
    "Table 2: accuracy on the target": table_2,
    "Local, over all clients": all_local,
    "Table 3: estimated class shares": table_3,
    "Table 4: rounds of fine-tuning": table_4,
    "Table 5: composed mixes and clients used": table_5,
    "Figure 4: learning curves": _figure_4,
    "Figure 5: errors by client": _figure_5,
}
