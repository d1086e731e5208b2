"""Tables 2 to 5 of On-Demand FL, the paper's numbers beside ours."""

from collections.abc import Mapping

import numpy as np

from papers.measuring import GUESS
from papers.ondemand import BASELINE, LATE, MANY, OURS, TARGETS, TITLES, TRUE, variant_of
from papers.ondemand_lines import (
    NAMES,
    UNDER_WAY,
    About,
    Place,
    accuracy_cell,
    after_branch,
    error_cell,
    points_above_fedavg,
    together,
)
from papers.pages import MISSING, Part, Table, spread
from papers.store import OWN_MIX

_POINTS = {"95 %": 0.95, "98 %": 0.98, "peak": 1.0}
_SHOWN = (BASELINE, *(name for name in TITLES if name in MANY), OURS, LATE, TRUE)
"""Rows of Table 2."""


def table_2(about: About) -> list[Part]:
    parts: list[Part] = [
        "Peak accuracy on the target. On demand, ground truth, composes clients by their true class shares; in closed "
        "form (Table 3) they are known as exactly. Figures of the paper in brackets are not about these targets, as "
        "said above.",
    ]
    columns = ("α", "algorithm", *(f"{NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")), "seeds")
    for task in about.scale.tasks:
        rows = []
        for place in (one for one in about.places if one.task is task):
            for method in methods_at(about, place):
                rows.append(_accuracy_row(about, place, method))
        parts += [f"**{task.title}**", Table(columns, rows)]
    rows = []
    for place in about.places:
        for method in (OURS, LATE, TRUE):
            if not about.begun(place, method):
                continue
            for kind in ("peak", "end"):
                gains = [points_above_fedavg(about, place, method, column, kind) for column in TARGETS]
                cells = ["-" if gain is None else spread(gain, "{:+.1f}") for gain in gains]
                rows.append([place.task.title, f"{place.alpha:g}", TITLES[method], kind, *cells])
    if rows:
        head = ("data", "α", "algorithm", "at the", *(NAMES[column] for column in TARGETS))
        parts += ["Points above FedAvg, at the peak and at the end:", Table(head, rows)]
    return parts


def methods_at(about: About, place: Place) -> list[str]:
    """Rows of a place: without what it does not have."""
    absent = {LATE} if place not in about.drawn else set()
    return [m for m in _SHOWN if m not in absent and (place.task.convex or m != "mocha")]


def _accuracy_row(about: About, place: Place, method: str) -> list[str]:
    cells = []
    for column in TARGETS:
        paper = place.printed_accuracy(method, column)
        # In the authors' code these are other targets, where there are fewer classes than clients.
        elsewhere = method in MANY and column != OWN_MIX and place.task.classes < about.scale.clients
        printed = "-" if paper is None else f"({paper:.0f})" if elsewhere else f"{paper:.0f}"
        cells += [printed, accuracy_cell(about, place, method, column, "peak")]
    seeds = {seed for column in TARGETS for seed in about.curves(place, method, column)}
    return [f"{place.alpha:g}", TITLES[method], *cells, str(len(seeds))]


def all_local(about: About) -> list[Part]:
    scale = about.scale
    place = about.places[0]
    everyone = (*scale.local_targets, *scale.more_local_targets)
    words = (
        f"{place.title}, one seed: the mean over the mixes of {len(everyone)} clients, each with a model of its own, "
        "as in the paper's column Local."
    )
    found = {
        method: {
            seed: curves
            for seed, curves in about.curves(place, method, OWN_MIX, locals_=everyone).items()
            if len(curves) == len(everyone)
        }
        for method in (BASELINE, OURS, TRUE)
    }
    seeds = set(found[BASELINE]) & (set(found[OURS]) | set(found[TRUE]))
    if not seeds:
        return [words, about.missing("All local targets", "all-local")]
    seed = min(seeds)
    rows = []
    for method in (BASELINE, OURS, TRUE):
        curves = found[method].get(seed, {})
        if not curves:
            rows.append([TITLES[method], MISSING, MISSING, "-", "-", "-"])
            continue
        mean, base = (together(list(found[one][seed].values())) for one in (method, BASELINE))
        gains = np.array([curve.end - found[BASELINE][seed][target].end for target, curve in curves.items()])
        above = [f"{100 * (getattr(mean, kind) - getattr(base, kind)):+.1f}" for kind in ("peak", "end")]
        compared = ["-", "-", "-"] if method == BASELINE else [*above, f"{(gains > 0).mean():.0%}"]
        rows.append([TITLES[method], f"{100 * mean.peak:.1f}", f"{100 * mean.end:.1f}", *compared])
    columns = ("algorithm", "peak", "end", "points above FedAvg, peak", "end", "clients that gain, end")
    return [words, Table(columns, rows)]


def table_3(about: About) -> list[Part]:
    rows = []
    for place in about.places:
        task = place.task
        runs = about.measured(place)
        cells = [
            error_cell(runs, name, at)
            for name, at in (
                ("learned", task.estimated),
                ("learned", task.branch),
                ("surveyed", task.branch),
                ("analytic", task.branch),
                ("analytic-as-is", task.branch),
                (GUESS, task.branch),
            )
        ]
        heard = [one["seen"] for run in runs for one in run.measurements if one["round"] == task.estimated]
        paper = "-" if place.printed is None else f"{place.printed[0].error[place.printed[1]]:.2f}"
        told = f"{np.mean(heard):.0f} of {about.scale.clients}" if heard else "-"
        rows.append([task.title, f"{place.alpha:g}", paper, *cells, told, str(len(runs))])
    columns = (
        "data",
        "α",
        "paper",
        "predictor, early",
        "predictor, at the branch",
        "same, all clients asked",
        "closed form, zero head",
        "closed form, as is",
        "uniform guess",
        "clients heard of, early",
        "seeds",
    )
    return [
        "n·MAE of estimated class shares, the sum of the differences over all classes, mean over clients; clients that "
        "never took part have a uniform guess. The predictor of the base run, early (at the round that clients are "
        "composed by) and at the branch, from what clients told when they last took part, and after all clients were "
        "asked at the model of the branch. In closed form at the branch: one gradient of each client's last bias, at "
        "the model with its last layer set to zero, and at the model as it is.",
        Table(columns, rows),
    ]


def table_4(about: About) -> list[Part]:
    rows = []
    for place in about.places:
        ours, base = (after_branch(about, place, method) for method in (OURS, BASELINE))
        # On the same targets and seeds, where there are any of both.
        base = {one: base[one] for one in ours if one in base} or base
        for number, (label, share) in enumerate(_POINTS.items()):
            cells = []
            for method, curves in ((OURS, ours), (BASELINE, base)):
                printed = place.printed
                cells.append("-" if printed is None else printed[0].rounds[method][printed[1]][number])
                taken = [curve.rounds_to(share) for curve in curves.values()]
                waiting = UNDER_WAY if about.begun(place, method) else MISSING
                cells.append(f"{np.mean(taken):.2f} ± {np.std(taken):.2f}" if taken else waiting)
            rows.append([place.task.title, f"{place.alpha:g}", label, *cells, str(len(ours) or len(base))])
    columns = (
        "data",
        "α",
        "of the peak",
        "on demand, paper",
        "ours",
        "FedAvg, paper",
        "ours",
        "targets x seeds",
    )
    return [
        "Rounds, counted from the branch, to 95 % and 98 % of the peak and to the peak itself: that of fine-tuning, "
        "and that of FedAvg going on for as many rounds. Mean ± standard deviation over targets (TD 1 to 3 and Local) "
        "and seeds.",
        Table(columns, rows),
    ]


def table_5(about: About) -> list[Part]:
    columns = ("data", "α", "estimates", *(f"{NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")))
    rows = []
    for place in about.places:
        for method, name in ((OURS, "predictor"), (TRUE, "ground truth")):
            cells = []
            for number, column in enumerate(TARGETS):
                printed = place.printed if method == OURS else None
                paper = "-" if printed is None else printed[0].composed[printed[1]][number]
                cells += [paper, _composed(about, place, method, column)]
            rows.append([place.task.title, f"{place.alpha:g}", name, *cells])
    return [
        "How far the mix of the composed clients is from the target in truth (n·MAE), and how many clients there are "
        f"(of {about.scale.clients}); means over targets and seeds.",
        Table(columns, rows),
    ]


def _composed(about: About, place: Place, method: str, column: str) -> str:
    found: list[Mapping[str, float]] = [
        result.branch
        for target in about.targets(method, column)
        for result in about.store.line(place.name, method, variant_of(target)).values()
        if result.branch
    ]
    if not found:
        return MISSING
    distance, clients = (float(np.mean([one[key] for one in found])) for key in ("true_distance", "clients"))
    return f"{distance:.2f} ({clients:.4g})"
