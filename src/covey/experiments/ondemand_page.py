"""On-Demand FL's tables and figures from stored runs, the paper's numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covey.comparison import Estimate
from covey.environments import FloatArray
from covey.experiments.lines import ROUND
from covey.experiments.measuring import GUESS
from covey.experiments.ondemand import (
    BASELINE,
    LATE,
    MANY,
    OURS,
    TARGETS,
    TITLES,
    TRUE,
    OnDemandScale,
    Task,
    environment_name,
    variant_of,
)
from covey.experiments.ondemand_printed import ALPHAS, Printed
from covey.experiments.pages import (
    MISSING,
    ORIGIN,
    Chart,
    Page,
    Part,
    Series,
    Table,
    accuracy_series,
    assembled,
    command_of,
    counted,
    joined,
    not_yet,
    origin,
    spread,
    usable,
)
from covey.experiments.plan import Paper
from covey.experiments.statistics import reached, thinned
from covey.experiments.store import OWN_MIX, Result, Store

UNDER_WAY = "under way"

_NAMES = {"td1": "TD 1", "td2": "TD 2", "td3": "TD 3", OWN_MIX: "Local"}
_PLACES = {method: place for place, method in enumerate(TITLES)}
_POINTS = {"95 %": 0.95, "98 %": 0.98, "peak": 1.0}
_SHOWN = (BASELINE, *(name for name in TITLES if name in MANY), OURS, LATE, TRUE)
"""Rows of Table 2."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy on one target over the rounds of one run."""

    rounds: FloatArray
    accuracy: FloatArray

    @property
    def peak(self) -> float:
        return float(self.accuracy.max())

    @property
    def end(self) -> float:
        """Mean over the last 5 % of the rounds, at least the last evaluation."""
        last = float(self.rounds[-1])
        return float(self.accuracy[self.rounds > last - max(1.0, 0.05 * last)].mean())

    def rounds_to(self, share: float) -> float:
        """The first evaluated round with so large a share of the peak."""
        return float(self.rounds[np.argmax(self.accuracy >= share * self.accuracy.max() - 1e-9)])


ByTarget = dict[int, dict[str, Curve]]
"""Seed → target → curve: what one cell of a table is made of."""


def page_of(paper: Paper, scale: OnDemandScale, store: Store) -> Page:
    """The page of one scale."""
    kept, notes = usable(paper, scale, store)
    about = _About(scale, kept, command_of(paper, scale))
    title = "On-Demand FL, a trial of the machinery" if scale.local_only else "On-Demand FL, reproduced"
    return assembled(scale, title, about, [*_opening(about), *_in_words(about)], _SECTIONS, _runs(about), notes)


@dataclass(frozen=True)
class _Place:
    """One data set at one α."""

    task: Task
    alpha: float

    @property
    def name(self) -> str:
        return environment_name(self.task, self.alpha)

    @property
    def title(self) -> str:
        return f"{self.task.title}, α = {self.alpha:g}"

    @property
    def printed(self) -> tuple[Printed, int] | None:
        """What the paper says of the data set, and where it says it of this α; None where it has neither."""
        if self.task.printed is None or self.alpha not in ALPHAS:
            return None
        return self.task.printed, ALPHAS.index(self.alpha)

    def printed_accuracy(self, method: str, column: str) -> float | None:
        """Table 2 in percent. The paper has one FMTL; here there are two readings of it."""
        name = "fmtl" if method.startswith("mocha") else method
        if self.printed is None or name not in self.printed[0].accuracy:
            return None
        printed, at = self.printed
        return 100 * printed.accuracy[name][at][TARGETS.index(column)]


class _About:
    """What every section needs to know."""

    def __init__(self, scale: OnDemandScale, store: Store, command: str) -> None:
        self.scale = scale
        self.store = store
        self.command = command

    @cached_property
    def places(self) -> list[_Place]:
        return [_Place(task, alpha) for task, alpha in self.scale.places]

    @cached_property
    def drawn(self) -> list[_Place]:
        """Those of the figures: the first α, where results keep the accuracy of every class."""
        return [place for place in self.places if place.alpha == self.scale.alphas[0] and place.task.listed]

    def curves(self, place: _Place, method: str, column: str, *, locals_: Sequence[str] = ()) -> ByTarget:
        """What the finished runs of a method come to on the targets of a table's column.

        Local is several targets of methods that serve one at a time, and one for those with a model for each client.
        """
        targets = (locals_ or self.scale.local_targets) if column == OWN_MIX and method not in MANY else (column,)
        found: ByTarget = {}
        for target in targets:
            for seed, result in self.finished(place, method, target).items():
                accuracy = result.accuracy_on(target)
                if accuracy is not None:
                    found.setdefault(seed, {})[target] = Curve(result.evaluations, accuracy)
        return found

    def finished(self, place: _Place, method: str, target: str) -> dict[int, Result]:
        """Seed → run at its end, of the runs that tell about a target."""
        tuned = method in (OURS, LATE, TRUE)
        line = self.store.line(place.name, method, variant_of(target) if tuned else "")
        planned = place.task.tuned if tuned else place.task.rounds
        return {seed: result for seed, result in line.items() if reached(result) >= planned}

    def measured(self, place: _Place) -> list[Result]:
        """Base runs whose estimates were compared with the truth."""
        return [result for result in self.store.line(place.name, BASELINE).values() if result.measurements]

    def begun(self, place: _Place, method: str) -> bool:
        return any((result.environment, result.method) == (place.name, method) for result in self.store)

    def missing(self, what: str, group: str, place: _Place | None = None) -> str:
        where = "" if place is None else f" --environments {place.name}"
        return not_yet(what, f"{self.command} --only {group}{where}")


def _opening(about: _About) -> list[Part]:
    scale, local = about.scale, about.scale.local
    rounds = "; ".join(
        f"{task.title}: {task.rounds:,} rounds of FedAvg, fine-tuning for {task.tuned} from round {task.branch:,}, "
        f"estimates of round {task.estimated}"
        for task in scale.tasks
    )
    return [
        'Jeong and Lee, "On-Demand Federated Learning for Arbitrary Target Class Distributions", AISTATS 2024: its '
        "tables and figures beside what Covey measures.",
        f"Made by `{about.command} --only tables` from the {len(about.store)} runs in `{scale.store}` of the results "
        f"folder, and from nothing else. Settings: {scale.clients} clients, every class split over them by a "
        f"Dirichlet(α), {scale.cohort} a round, {counted(int(local['epochs']), 'epoch')} in batches of "
        f"{local['batch']}, rate {local['rate']:g}, momentum {local['momentum']:g}. {rounds}.",
        "Accuracies are in percent. Accuracy on a target is the mean of the accuracies of all classes, weighted by the "
        "target's mix, over all test images; the paper takes a part of them that has this mix. It does not say which "
        "round it reports. Here it is the best one (the peak), which its Table 4 suggests, and beside it the mean over "
        "the last 5 % of the rounds (the end). FedAvg's peak is the best of all its rounds, that of a model on demand "
        "the best of its fine-tuning. ± is half of Student's 95 % interval over seeds, each with a split of the data "
        "of its own; differences are taken seed by seed and target by target. The paper has one seed. Only runs at "
        "their end count.",
        f"Local is the mean over the mixes of {scale.clients_as_targets} clients (in the paper, of all "
        "100), each with a model that is fine-tuned for it; for methods with a model for each client it is the mean "
        "over all clients, each with its own model on its own mix. On TD 1 to 3 these methods are judged by the mean "
        "over all clients' models.",
        "Where this differs from the authors' runs: the last layer has a bias, so that class shares can also be "
        "computed in closed form on the same run. The predictor sees gradients at the model that a client received, "
        "and is applied to the mean of them, which is what the paper says that a client sends; the authors' code "
        "applies it to the gradient of every mini-batch and takes the mean of what comes out. Ratios are composed from "
        "class shares as printed in equations 7 and 8 and weigh the models; the authors' code scales shares by numbers "
        "of samples and then weighs by the ratios alone, which composes another mix than the "
        "one it solves for. In the authors' code the test sets of CFL, FMTL and FedFomo for TD 1 to 3 are looked up by "
        "a share of the clients where a share of the classes is meant: with ten classes they are mixes of single "
        "clients, so the paper's figures in these cells are not about TD 1 to 3 (those of CIFAR-100 are); and its "
        "FMTL has a regulariser without a gradient, which makes it local training. Ours are on the targets that the "
        "others are on.",
    ]


def _in_words(about: _About) -> list[Part]:
    """What holds at each place, in sentences."""
    said = [
        f"- {place.title}: {sentence}"
        for place in about.places
        for sentence in (
            _gains_in_words(about, place, "peak", "the best round of each"),
            _gains_in_words(about, place, "end", "the last rounds of each"),
            _rounds_in_words(about, place),
            _estimates_in_words(about, place),
        )
        if sentence
    ]
    return ["\n".join(said)] if said else []


def _gains_in_words(about: _About, place: _Place, kind: str, when: str) -> str:
    """Points above FedAvg on each target; the paper's are those of the peak."""
    gains = []
    for column in TARGETS:
        gain = _gain(about, place, OURS, column, kind)
        if gain is not None:
            own, base = (place.printed_accuracy(method, column) for method in (OURS, BASELINE))
            theirs = "" if kind != "peak" or own is None or base is None else f" (in the paper {own - base:+.0f})"
            gains.append(f"{_NAMES[column]} {spread(gain, '{:+.1f}')}{theirs}")
    return f"points that a model on demand gains over FedAvg, by {when}: {joined(gains)}." if gains else ""


def _rounds_in_words(about: _About, place: _Place) -> str:
    """How soon models on demand are nearly as good as they get, and FedAvg on the same targets and seeds."""
    ours, base = (_after_branch(about, place, method) for method in (OURS, BASELINE))
    common = sorted(set(ours) & set(base))
    if not common:
        return ""
    own, others = (np.mean([curves[one].rounds_to(0.95) for one in common]) for curves in (ours, base))
    return (
        f"fine-tuning comes to 95 % of its best accuracy in {own:.1f} rounds on average, FedAvg going on in "
        f"{others:.1f} ({len(common)} targets x seeds)."
    )


def _estimates_in_words(about: _About, place: _Place) -> str:
    """How far off the predictor is where clients are composed by it, beside what other estimates are off."""
    task = place.task
    runs = about.measured(place)
    early, late, exact, guess = (
        _error(runs, name, at)
        for name, at in (
            ("learned", task.estimated),
            ("learned", task.branch),
            ("analytic", task.branch),
            (GUESS, task.branch),
        )
    )
    if MISSING in (early, late, exact, guess):
        return ""
    theirs = "" if place.printed is None else f" (in the paper {place.printed[0].error[place.printed[1]]:.2f})"
    return (
        f"n·MAE of class shares by the predictor is {early} after {task.estimated} rounds{theirs} and {late} after "
        f"{task.branch:,}, in closed form {exact}; a uniform guess is off by {guess}."
    )


def _gain(about: _About, place: _Place, method: str, column: str, kind: str) -> Estimate | None:
    """Points above FedAvg, over the seeds and targets that both have."""
    own = about.curves(place, method, column)
    base = about.curves(place, BASELINE, column)
    values = []
    for seed in sorted(set(own) & set(base)):
        common = set(own[seed]) & set(base[seed])
        if common:
            values.append(
                np.mean([getattr(own[seed][one], kind) - getattr(base[seed][one], kind) for one in sorted(common)])
            )
    return Estimate.of([float(value) for value in values]) if values else None


def _cell(about: _About, place: _Place, method: str, column: str, kind: str, locals_: Sequence[str] = ()) -> str:
    """Accuracy over seeds, the mean over targets first; how many of them, where these are not all."""
    found = about.curves(place, method, column, locals_=locals_)
    if not found:
        return UNDER_WAY if about.begun(place, method) else MISSING
    means = [float(np.mean([getattr(curve, kind) for curve in curves.values()])) for curves in found.values()]
    fewest = min(map(len, found.values()))
    wanted = len(locals_ or about.scale.local_targets) if column == OWN_MIX and method not in MANY else 1
    return spread(Estimate.of(means)) + (f" ({fewest} of {wanted} targets)" if fewest < wanted else "")


def _table_2(about: _About) -> list[Part]:
    parts: list[Part] = [
        "Peak accuracy on the target. On demand, ground truth, composes clients by their true class shares; in closed "
        "form (Table 3) they are known as exactly. Figures of the paper in brackets are not about these targets, as "
        "said above.",
    ]
    columns = ("α", "algorithm", *(f"{_NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")), "seeds")
    for task in about.scale.tasks:
        rows = []
        for place in (one for one in about.places if one.task is task):
            for method in _methods_at(about, place):
                rows.append(_accuracy_row(about, place, method))
        parts += [f"**{task.title}**", Table(columns, rows)]
    rows = []
    for place in about.places:
        for method in (OURS, LATE, TRUE):
            if not about.begun(place, method):
                continue
            for kind in ("peak", "end"):
                gains = [_gain(about, place, method, column, kind) for column in TARGETS]
                cells = ["-" if gain is None else spread(gain, "{:+.1f}") for gain in gains]
                rows.append([place.task.title, f"{place.alpha:g}", TITLES[method], kind, *cells])
    if rows:
        head = ("data", "α", "algorithm", "at the", *(_NAMES[column] for column in TARGETS))
        parts += ["Points above FedAvg, at the peak and at the end:", Table(head, rows)]
    return parts


def _methods_at(about: _About, place: _Place) -> list[str]:
    """Rows of a place: without what it does not have."""
    absent = {LATE} if place not in about.drawn else set()
    return [m for m in _SHOWN if m not in absent and (place.task.convex or m != "mocha")]


def _accuracy_row(about: _About, place: _Place, method: str) -> list[str]:
    cells = []
    for column in TARGETS:
        paper = place.printed_accuracy(method, column)
        # In the authors' code these are other targets, where there are fewer classes than clients.
        elsewhere = method in MANY and column != OWN_MIX and place.task.classes < about.scale.clients
        printed = "-" if paper is None else f"({paper:.0f})" if elsewhere else f"{paper:.0f}"
        cells += [printed, _cell(about, place, method, column, "peak")]
    seeds = {seed for column in TARGETS for seed in about.curves(place, method, column)}
    return [f"{place.alpha:g}", TITLES[method], *cells, str(len(seeds))]


def _all_local(about: _About) -> list[Part]:
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
            rows.append([TITLES[method], MISSING, MISSING, "-", "-"])
            continue
        peak, end = (100 * np.mean([getattr(curve, kind) for curve in curves.values()]) for kind in ("peak", "end"))
        gains = np.array([curve.peak - found[BASELINE][seed][target].peak for target, curve in curves.items()])
        compared = ["-", "-"] if method == BASELINE else [f"{100 * gains.mean():+.1f}", f"{(gains > 0).mean():.0%}"]
        rows.append([TITLES[method], f"{peak:.1f}", f"{end:.1f}", *compared])
    columns = ("algorithm", "peak", "end", "points above FedAvg", "clients with any gain")
    return [words, Table(columns, rows)]


def _table_3(about: _About) -> list[Part]:
    rows = []
    for place in about.places:
        task = place.task
        runs = about.measured(place)
        cells = [
            _error(runs, name, at)
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


def _error(runs: Sequence[Result], estimator: str, at: int) -> str:
    """n·MAE over seeds, the mean over clients first."""
    means = []
    for run in runs:
        for one in run.measurements:
            if one["round"] == at and estimator in one.get("errors", {}):
                errors = [error for error in one["errors"][estimator] if error is not None]
                if errors:
                    means.append(float(np.mean(errors)))
    return spread(Estimate.of(means), "{:.2f}", 1.0) if means else MISSING


def _table_4(about: _About) -> list[Part]:
    rows = []
    for place in about.places:
        ours, base = (_after_branch(about, place, method).values() for method in (OURS, BASELINE))
        for number, (label, share) in enumerate(_POINTS.items()):
            cells = []
            for method, curves in ((OURS, ours), (BASELINE, base)):
                printed = place.printed
                cells.append("-" if printed is None else printed[0].rounds[method][printed[1]][number])
                taken = [curve.rounds_to(share) for curve in curves]
                waiting = UNDER_WAY if about.begun(place, method) else MISSING
                cells.append(f"{np.mean(taken):.2f} ± {np.std(taken):.2f}" if taken else waiting)
            rows.append([place.task.title, f"{place.alpha:g}", label, *cells, str(len(ours))])
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


def _after_branch(about: _About, place: _Place, method: str) -> dict[tuple[int, str], Curve]:
    """Seed and target → curve from the branch on, which is round 0.

    Curves of on-demand models begin with what the base model has on the target.
    """
    task = place.task
    found = {}
    for column in TARGETS:
        base = about.curves(place, BASELINE, column)
        for seed, curves in about.curves(place, method, column).items():
            for target, curve in curves.items():
                before = base.get(seed, {}).get(target)
                if method == BASELINE:
                    inside = (curve.rounds >= task.branch) & (curve.rounds <= task.branch + task.tuned)
                    found[seed, target] = Curve(curve.rounds[inside] - task.branch, curve.accuracy[inside])
                elif before is not None and (before.rounds == task.branch).any():
                    level = before.accuracy[before.rounds == task.branch]
                    found[seed, target] = Curve(np.append(0.0, curve.rounds), np.append(level, curve.accuracy))
    return found


def _table_5(about: _About) -> list[Part]:
    columns = ("data", "α", "estimates", *(f"{_NAMES[c]}, {who}" for c in TARGETS for who in ("paper", "ours")))
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


def _composed(about: _About, place: _Place, method: str, column: str) -> str:
    targets = about.scale.local_targets if column == OWN_MIX else (column,)
    found: list[Mapping[str, float]] = [
        result.branch
        for target in targets
        for result in about.store.line(place.name, method, variant_of(target)).values()
        if result.branch
    ]
    if not found:
        return MISSING
    distance, clients = (float(np.mean([one[key] for one in found])) for key in ("true_distance", "clients"))
    return f"{distance:.2f} ({clients:.4g})"


def _figure_4(about: _About) -> list[Part]:
    parts: list[Part] = [
        "Accuracy on the target over rounds, mean over seeds; fine-tuning begins where its lines begin. The paper "
        "shows that it rises above all others within a few rounds, most of all on Local; only the curves are given."
    ]
    for place in about.drawn:
        for column in ("td1", "td3", OWN_MIX):
            series = []
            for method in _methods_at(about, place):
                line = _mean_curve(about.curves(place, method, column))
                if line is not None:
                    shift = place.task.branch if method in (OURS, LATE, TRUE) else 0
                    rounds, estimates = line
                    at = [round + shift for round in rounds]
                    series.append(accuracy_series(TITLES[method], at, estimates, _PLACES[method]))
            if series:
                name = f"figure-4-{place.name}-{column}"
                title = f"Fig. 4: {place.title}, {_NAMES[column]}"
                parts.append(Chart(name, title, ROUND, "accuracy on the target (%)", series))
            else:
                parts.append(about.missing(f"Figure 4, {place.title}, {_NAMES[column]}", "figure-4", place))
    return parts


def _mean_curve(found: ByTarget) -> tuple[list[int], list[Estimate]] | None:
    """Accuracy at rounds that all seeds have evaluated: the mean over a seed's targets, then over seeds."""
    if not found:
        return None
    rounds = sorted(
        set.intersection(*(set(c.rounds.astype(int).tolist()) for curves in found.values() for c in curves.values()))
    )
    rounds = thinned(rounds, 100)
    estimates = []
    for at in rounds:
        means = [
            float(np.mean([curve.accuracy[curve.rounds == at][0] for curve in curves.values()]))
            for curves in found.values()
        ]
        estimates.append(Estimate.of(means))
    return rounds, estimates


def _figure_5(about: _About) -> list[Part]:
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


def _runs(about: _About) -> Part:
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


_SECTIONS: dict[str, Callable[[_About], list[Part]]] = {
    "Table 2: accuracy on the target": _table_2,
    "Local, over all clients": _all_local,
    "Table 3: estimated class shares": _table_3,
    "Table 4: rounds of fine-tuning": _table_4,
    "Table 5: composed mixes and clients used": _table_5,
    "Figure 4: learning curves": _figure_4,
    "Figure 5: errors by client": _figure_5,
}
