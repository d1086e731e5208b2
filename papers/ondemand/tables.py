"""Tables 2 to 5 of On-Demand FL, the paper's numbers beside ours."""

import numpy as np

from papers.measurements import GUESS
from papers.ondemand.results import (
    NAMES,
    UNDER_WAY,
    OnDemandResults,
    Place,
    error_cell,
    mean_error,
    mean_over_targets,
)
from papers.ondemand.scales import (
    BASELINE,
    LATE,
    MANY,
    MEAN,
    MEAN_BASE,
    OURS,
    SAME,
    TARGETS,
    TITLES,
    TRAINED,
    TRUE,
    WEIGHTED,
)
from papers.ondemand.text import PROSE
from papers.page import Part, Table
from papers.store import OWN_MIX
from papers.wording import MISSING, spread

_POINTS = {"95 %": 0.95, "98 %": 0.98, "peak": 1.0}
_SHOWN = (BASELINE, SAME, *(name for name in TITLES if name in MANY), OURS, MEAN, LATE, TRUE)
"""Rows of Table 2."""
_VARIANTS = (SAME, LATE, *WEIGHTED, *TRAINED)
"""Rows that are planned at the first α alone."""


def table_2(results: OnDemandResults) -> list[Part]:
    """Peak accuracy on every target, and points above FedAvg."""
    parts: list[Part] = [PROSE("table-2")]
    columns = ("α", "algorithm", *(f"{NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")), "seeds")
    for task in results.scale.tasks:
        rows = []
        for place in (one for one in results.places if one.task is task):
            for method in methods_at(results, place):
                rows.append(_accuracy_row(results, place, method))
                if method == BASELINE and results.curves(place, BASELINE, OWN_MIX):
                    rows.append(_same_mixes_row(results, place))
        parts += [f"**{task.title}**", Table(columns, rows)]
    rows = []
    for place in results.places:
        for method in (SAME, OURS, MEAN, LATE, TRUE):
            if not results.begun(place, method):
                continue
            for kind in ("peak", "end"):
                gains = [results.gain(place, method, column, kind) for column in TARGETS]
                cells = ["-" if gain is None else spread(gain, "{:+.1f}") for gain in gains]
                rows.append([place.task.title, f"{place.alpha:g}", TITLES[method], kind, *cells])
    if rows:
        head = ("data", "α", "algorithm", "at the", *(NAMES[column] for column in TARGETS))
        parts += [PROSE("table-2-gains"), Table(head, rows)]
    return parts


def methods_at(results: OnDemandResults, place: Place) -> list[str]:
    """Return the methods that are shown at a place: the planned ones, and any others that were run there."""

    def planned(method: str) -> bool:
        convex = place.task.convex or not method.startswith("mocha") or method == "mocha-deep"
        first = place in results.drawn or (method == SAME and place.alpha == results.scale.alphas[0])
        return method != MEAN and convex and (first or method not in _VARIANTS)

    return [method for method in _SHOWN if planned(method) or results.begun(place, method)]


def _same_mixes_row(results: OnDemandResults, place: Place) -> list[str]:
    """FedAvg on the mixes of the same single clients as models on demand."""
    cells = ["-"] * (2 * len(TARGETS) - 1)
    count, found = len(results.scale.local_targets), results.curves(place, BASELINE, OWN_MIX)
    local = results.accuracy(place, BASELINE, OWN_MIX, "peak", everyone=False)
    return [
        f"{place.alpha:g}",
        f"{TITLES[BASELINE]}, Local over the same {count} clients",
        *cells,
        local,
        str(len(found)),
    ]


def _accuracy_row(results: OnDemandResults, place: Place, method: str) -> list[str]:
    cells = []
    for column in TARGETS:
        paper = place.printed_accuracy(method, column)
        # With fewer classes than clients, the authors' code scores these methods on other targets.
        elsewhere = method in MANY and column != OWN_MIX and place.task.classes < results.scale.clients
        printed = "-" if paper is None else f"({paper:.0f})" if elsewhere else f"{paper:.0f}"
        cells += [printed, results.accuracy(place, method, column, "peak")]
    seeds = {seed for column in TARGETS for seed in results.curves(place, method, column)}
    return [f"{place.alpha:g}", TITLES[method], *cells, str(len(seeds))]


def all_local(results: OnDemandResults) -> list[Part]:
    """Accuracy over the mixes of all clients."""
    scale = results.scale
    place = results.places[0]
    everyone = (*scale.local_targets, *scale.more_local_targets)
    text = PROSE("all-local", place=place.title, count=len(everyone))
    found = {
        method: {
            seed: curves
            for seed, curves in results.curves(place, method, OWN_MIX, locals_=everyone).items()
            if len(curves) == len(everyone)
        }
        for method in (BASELINE, OURS, TRUE)
    }
    seeds = set(found[BASELINE]) & (set(found[OURS]) | set(found[TRUE]))
    if not seeds:
        return [text, results.missing("All local targets", "all-local")]
    seed = min(seeds)
    rows = []
    for method in (BASELINE, OURS, TRUE):
        curves = found[method].get(seed, {})
        if not curves:
            rows.append([TITLES[method], MISSING, MISSING, "-", "-", "-"])
            continue
        mean, base = (mean_over_targets(list(found[one][seed].values())) for one in (method, BASELINE))
        gains = np.array([curve.end - found[BASELINE][seed][target].end for target, curve in curves.items()])
        above = [f"{100 * (mean.at(kind) - base.at(kind)):+.1f}" for kind in ("peak", "end")]
        compared = ["-", "-", "-"] if method == BASELINE else [*above, f"{(gains > 0).mean():.0%}"]
        rows.append([TITLES[method], f"{100 * mean.peak:.1f}", f"{100 * mean.end:.1f}", *compared])
    columns = ("algorithm", "peak", "end", "points above FedAvg, peak", "end", "clients that gain, end")
    return [text, Table(columns, rows)]


def table_3(results: OnDemandResults) -> list[Part]:
    """Errors of all estimators, at the round that clients are composed by and at the branch."""
    rows = []
    for place in results.places:
        for base, inference in ((BASELINE, "eq. 6"), (MEAN_BASE, "mean gradient")):
            runs = results.measured(place, base)
            if runs or base == BASELINE:
                rows.append(_error_row(results, place, base, inference))
    columns = (
        "data",
        "α",
        "inference",
        "paper",
        *(f"{name}, {when}" for when in ("early", "at the branch") for name in _ESTIMATORS.values()),
        "uniform guess",
        "clients heard of, early",
        "seeds",
    )
    told = [sentence for place in results.places if (sentence := _distance(results, place))]
    return [PROSE("table-3"), Table(columns, rows), *told]


def _distance(results: OnDemandResults, place: Place) -> str:
    """Say what keeps the predictor's error above the paper's; nothing if it is not, or too little is measured."""
    runs, at = results.measured(place), place.task.estimated
    found = [mean_error(runs, name, at) for name in ("learned", "surveyed", "analytic-as-is")]
    if place.printed is None or any(one is None for one in found):
        return ""
    ours, asked, told = (one.mean for one in found if one is not None)
    paper = place.printed[0].error[place.printed[1]]
    if ours <= paper:
        return ""
    # Differences as small as this are those of one round to the next.
    stale = "distance-current" if asked > ours - 0.05 else "distance-stale"
    enough = "distance-fit" if told < ours else "distance-gradients"
    sentences = PROSE("distance", place=place.title, ours=ours, paper=paper), PROSE(stale, asked=asked)
    return " ".join((*sentences, PROSE(enough, told=told)))


_ESTIMATORS = {
    "learned": "predictor",
    "surveyed": "all clients asked",
    "analytic": "closed form, zero head",
    "analytic-as-is": "closed form, as is",
}


def _error_row(results: OnDemandResults, place: Place, base: str, inference: str) -> list[str]:
    task, runs = place.task, results.measured(place, base)
    cells = [error_cell(runs, name, at) for at in (task.estimated, task.branch) for name in _ESTIMATORS]
    seen = [one["seen"] for run in runs for one in run.measurements if one["round"] == task.estimated]
    paper = "-" if place.printed is None else f"{place.printed[0].error[place.printed[1]]:.2f}"
    share = f"{np.mean(seen):.0f} of {results.scale.clients}" if seen else "-"
    guess = error_cell(runs, GUESS, task.branch)
    return [task.title, f"{place.alpha:g}", inference, paper, *cells, guess, share, str(len(runs))]


def table_4(results: OnDemandResults) -> list[Part]:
    """Rounds of fine-tuning and of FedAvg to shares of the peak."""
    rows = []
    for place in results.places:
        for method, inference in ((OURS, "eq. 6"), (MEAN, "mean gradient")):
            if method == OURS or results.begun(place, method):
                rows += _rounds_rows(results, place, method, inference)
    columns = (
        "data",
        "α",
        "inference",
        "of the peak",
        "on demand, paper",
        "ours",
        "FedAvg, paper",
        "ours",
        "targets x seeds",
    )
    return [PROSE("table-4"), Table(columns, rows)]


def _rounds_rows(results: OnDemandResults, place: Place, own: str, inference: str) -> list[list[str]]:
    ours, base = (results.after_branch(place, method) for method in (own, BASELINE))
    # On common targets and seeds, if there are any.
    base = {one: base[one] for one in ours if one in base} or base
    rows = []
    for number, (label, share) in enumerate(_POINTS.items()):
        cells = []
        for method, printed_as, curves in ((own, OURS, ours), (BASELINE, BASELINE, base)):
            printed = place.printed
            cells.append("-" if printed is None else printed[0].rounds[printed_as][printed[1]][number])
            taken = [curve.rounds_to(share) for curve in curves.values()]
            absent = UNDER_WAY if results.begun(place, method) else MISSING
            cells.append(f"{np.mean(taken):.2f} ± {np.std(taken):.2f}" if taken else absent)
        rows.append([place.task.title, f"{place.alpha:g}", inference, label, *cells, str(len(ours) or len(base))])
    return rows


def table_5(results: OnDemandResults) -> list[Part]:
    """Distance of composed mixes from their targets, and number of clients."""
    columns = ("data", "α", "estimates", *(f"{NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")))
    rows = []
    for place in results.places:
        for method, name in ((OURS, "predictor"), (MEAN, "predictor, mean gradient"), (TRUE, "ground truth")):
            if method == MEAN and not results.begun(place, MEAN):
                continue
            cells = []
            for number, column in enumerate(TARGETS):
                printed = None if method == TRUE else place.printed
                paper = "-" if printed is None else printed[0].composed[printed[1]][number]
                cells += [paper, _composed(results, place, method, column)]
            rows.append([place.task.title, f"{place.alpha:g}", name, *cells])
    return [PROSE("table-5", clients=results.scale.clients), Table(columns, rows)]


def _composed(results: OnDemandResults, place: Place, method: str, column: str) -> str:
    found = results.compositions(place, method, column)
    if not found:
        return MISSING
    distance, clients = (float(np.mean([one[key] for one in found])) for key in ("true_distance", "clients"))
    return f"{distance:.2f} ({clients:.4g})"
