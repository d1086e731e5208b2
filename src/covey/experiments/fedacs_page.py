"""FedACS's tables and figures from stored runs, the paper's numbers beside ours."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from covey.comparison import Estimate
from covey.environments import FloatArray
from covey.environments.dominance import OBSERVED as OBSERVED_ALPHAS
from covey.experiments.fedacs import (
    BASELINE,
    ENVIRONMENTS,
    METHODS,
    OBSERVED,
    OURS,
    PAPER_IID,
    POOL,
    REFERENCE,
    TITLES,
    Environment,
    FedACSScale,
)
from covey.experiments.lines import ACCURACY, ROUND, Lines
from covey.experiments.pages import (
    MISSING,
    Chart,
    Page,
    Part,
    Series,
    Table,
    assembled,
    cell,
    clearness,
    command_of,
    counted,
    every_text,
    methods_in,
    not_yet,
    percent,
    runs_table,
    spread,
    usable,
)
from covey.experiments.plan import ANY, Paper
from covey.experiments.statistics import (
    Line,
    line_to_target,
    mean_by_window,
    numbers,
    on_common_seeds,
    paired_speed,
    paired_terminal,
    reached,
    share_of_gap,
)
from covey.experiments.store import Result, Store


def page_of(paper: Paper, scale: FedACSScale, store: Store) -> Page:
    """The page of one scale."""
    present = methods_in(store, METHODS)
    kept, notes = usable(paper, scale, store, present)
    about = _About(scale, kept, command_of(paper, scale), present)
    title = "FedACS, a trial of the machinery" if scale.local_only else "FedACS, reproduced"
    runs = runs_table(kept, lambda *place: scale.rounds)
    return assembled(scale, title, about, [*_opening(about), *_in_words(about)], _SECTIONS, runs, notes)


class _About(Lines):
    """What every section needs to know. The paper's terminal accuracy is the mean over the last 50 of 1,000 rounds."""

    def __init__(self, scale: FedACSScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES)
        self.scale = scale

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        return super().line(ANY if method == REFERENCE else environment, method, variant)

    def selecting(self, environment: Environment) -> list[str]:
        """Methods of an environment's tables: the paper's, and whatever else was run; IID is the same in all."""
        return [method for method in self.shown(environment.name, METHODS) if method != REFERENCE]


def _opening(about: _About) -> list[Part]:
    scale = about.scale
    local = scale.authors
    extra = "momentum 0.5 and weight decay 0.0005"
    extra += ", random crops after padding by 4, random flips" if local.get("crop") else ""
    return [
        'Wang, Zhu, Wang and Han, "Federated Analytics Informed Distributed Industrial IoT Learning with Non-IID '
        'Data", IEEE TNSE 2022: its tables and figures beside what Covey measures.',
        f"Made by `{about.command} --only tables` from the {len(about.store)} runs in `{scale.store}` of the results "
        "folder, and from nothing else. "
        f"Settings: {scale.dataset}, {scale.clients} clients of {scale.samples:,} samples, {scale.cohort} a round, "
        f"{local['epochs']} epochs in batches of {local['batch']}, rate {local['rate']:g} that falls by "
        f"{local['decay']:g} with every local epoch, {scale.rounds:,} rounds, an evaluation "
        f"{every_text(scale.evaluate_every)}. Unless a section says otherwise, local training also has what the "
        f"authors' code has and the text leaves out ({extra}).",
        f"Accuracies are in percent. Terminal accuracy is the mean over the last {counted(about.window, 'round')}. "
        "± is half of Student's 95 % interval over seeds; differences are taken seed by seed, at the last round that "
        "both runs have come to. The paper reports medians of five trials, without intervals. Where two or more seeds "
        "are at their end, figures are over these alone, and others are counted as under way; a figure of runs that "
        'are still under way is marked "so far".',
    ]


def _in_words(about: _About) -> list[Part]:
    """The result of each environment in a sentence."""
    said = []
    for environment in ENVIRONMENTS:
        base = about.line(environment.name, BASELINE)
        pair = paired_terminal(about.line(environment.name, OURS), base, about.window)
        if pair is None:
            continue
        ours = about.line(environment.name, OURS)
        rounds = min(reached(line[seed]) for line in (ours, base) for seed in pair.seeds)
        verb = "ends" if rounds >= about.scale.rounds else f"stands, after {rounds:,} of {about.scale.rounds:,} rounds,"
        sentence = (
            f"{environment.title}: FedACS {verb} {about.points(pair.difference)} points from random selection "
            f"({clearness(pair.difference)}; {counted(len(pair.seeds), 'seed')}"
        )
        if environment.accuracy:
            theirs = environment.accuracy[OURS] - environment.accuracy[BASELINE]
            sentence += f"; in the paper {theirs:+.1f}"
        sentence += ")"
        gap = paired_terminal(about.line(ANY, REFERENCE), base, about.window)
        if gap is not None:
            sentence += f", IID {about.points(gap.difference)}"
            sentence += (
                f" (in the paper {PAPER_IID - environment.accuracy[BASELINE]:+.1f})" if environment.accuracy else ""
            )
        said.append(f"- {sentence}.{_against_rival(about, environment)}")
    return ["\n".join(said)] if said else []


def _against_rival(about: _About, environment: Environment) -> str:
    """How FedACS does against the method that comes closest to it in the paper, as the authors compared it."""
    pair = paired_terminal(
        about.line(environment.name, OURS), about.line(environment.name, "oort-simple"), about.window
    )
    if pair is None:
        return ""
    sentence = f" Against Oort as compared {about.points(pair.difference)} ({clearness(pair.difference)}"
    if environment.accuracy:
        sentence += f"; in the paper {environment.accuracy[OURS] - environment.accuracy['oort-simple']:+.1f}"
    return sentence + ")."


def _table_2(about: _About) -> list[Part]:
    columns = (
        "environment",
        "method",
        "paper",
        "ours",
        "median",
        "points against random",
        "gap closed, paper",
        "gap closed, ours",
        "seeds",
        "rounds",
    )
    iid = about.line(ANY, REFERENCE)
    rows = [_accuracy_row(about, None, REFERENCE, iid)]
    for environment in ENVIRONMENTS:
        for method in about.selecting(environment):
            rows.append(_accuracy_row(about, environment, method, about.line(environment.name, method)))
    return [
        Table(columns, rows),
        "The gap is that between random selection and IID; it has no shares where its own interval holds zero. Oort "
        'and CMFL stand twice: as their authors describe them ("original"), and in the short form with which the '
        'authors of FedACS compared ("as compared"); the paper has one line of each.',
    ]


def _accuracy_row(about: _About, environment: Environment | None, method: str, line: Line) -> list[str]:
    paper = PAPER_IID if environment is None else environment.accuracy.get(method)
    share = 100.0 if environment is None else environment.improvement.get(method)
    head = [
        "all" if environment is None else environment.title,
        about.title(method),
        cell(paper, "{:.1f}"),
    ]
    shares = cell(share, "{:.1f}")
    if not line:
        return [*head, MISSING, "-", "-", shares, "-", "0", "0"]
    own = about.estimate(line)
    difference = recovered = "-"
    if environment is not None and method != BASELINE:
        base = about.line(environment.name, BASELINE)
        difference = about.difference(line, base)
        recovered = percent(share_of_gap(line, base, about.line(ANY, REFERENCE), about.window))
    return [
        *head,
        about.terminal(line),
        f"{100 * own.median:.1f}",
        difference,
        shares,
        recovered,
        about.seeds(line),
        about.rounds_run(line),
    ]


def _table_3(about: _About) -> list[Part]:
    columns = (
        "environment",
        "target",
        "method",
        "paper: rounds",
        "ours: rounds",
        "median",
        "rounds against random",
        "speed-up, paper",
        "speed-up, ours",
        "seeds",
        "rounds run",
    )
    rows = []
    for environment in ENVIRONMENTS:
        if environment.target is None:
            continue
        for method in about.selecting(environment):
            rows.append(_speed_row(about, environment, method, environment.target))
    return [
        Table(columns, rows),
        "Rounds are counted to the first evaluation that reaches the target, and averaged where all seeds reach it. "
        "The paper's 265 rounds and 0.9x of Rexp3 in the Dirichlet environment cannot both be right: 465 / 265 is 1.8.",
        "Rounds to other targets, IID among them:",
        _targets(about),
    ]


def _speed_row(about: _About, environment: Environment, method: str, target: float) -> list[str]:
    line, base = about.line(environment.name, method), about.line(environment.name, BASELINE)
    paper = environment.rounds.get(method)
    head = [environment.title, f"{100 * target:.0f}", about.title(method), cell(paper, "{:d}")]
    printed = cell(environment.speed_up.get(method), "{:.1f}x")
    if not line:
        return [*head, MISSING, "-", "-", printed, "-", "0", "0"]
    own = line_to_target(line, target)
    pair = None if method == BASELINE else paired_speed(line, base, target)
    return [
        *head,
        about.to_target(line, target),
        "-" if own.rounds is None else f"{own.rounds.median:.0f}",
        "-" if pair is None else spread(pair[1].difference, "{:+.0f}", 1.0),
        printed,
        "-" if pair is None else f"{pair[0]:.2f}x",
        about.seeds(line),
        about.rounds_run(line),
    ]


def _targets(about: _About) -> Table:
    targets = about.scale.targets
    rows = [_targets_row(about, "all", REFERENCE, about.line(ANY, REFERENCE))]
    for environment in ENVIRONMENTS:
        for method in about.selecting(environment):
            line = about.line(environment.name, method)
            if line:
                rows.append(_targets_row(about, environment.title, method, line))
    return Table(
        ("environment", "method", *(f"{100 * target:.0f} %" for target in targets), "seeds", "rounds run"), rows
    )


def _targets_row(about: _About, environment: str, method: str, line: Line) -> list[str]:
    cells = [about.to_target(line, target) for target in about.scale.targets]
    run = about.rounds_run(line)
    return [environment, about.title(method), *cells, about.seeds(line), run]


def _recipes(about: _About) -> list[Part]:
    rows = []
    for title, variant in (("authors' code", ""), ("as printed", "printed")):
        for method in (REFERENCE, BASELINE, OURS):
            line = about.line("uniform", method, variant)
            cells = about.at_rounds(line, about.scale.checked)
            rows.append([title, TITLES[method], *cells, about.seeds(line), about.rounds_run(line)])
    columns = ("local training", "method", *(f"round {at:,}" for at in about.scale.checked), "seeds", "rounds")
    parts: list[Part] = [
        "Test accuracy in the uniform environment. The text prints neither augmentation nor momentum nor weight decay; "
        "the authors' code has them.",
        Table(columns, rows),
    ]
    if not any(about.line("uniform", method, "printed") for method in (REFERENCE, BASELINE, OURS)):
        parts.append(about.missing("The recipe as printed", "printed"))
    return parts


def _figure_2(about: _About) -> list[Part]:
    lines = {"IID": about.line(ANY, REFERENCE, "section3")}
    drops = {one.title: one.drop for one in ENVIRONMENTS if one.drop is not None}
    lines |= {one.title: about.line(one.name, BASELINE, "section3") for one in ENVIRONMENTS if one.drop is not None}
    words = (
        f"Section III: random selection, {about.scale.own_samples} samples a client, none shared, batches of "
        f"{about.scale.own_batch}."
    )
    rows = []
    for title, line in lines.items():
        rows.append(
            [
                title,
                f"-{drops[title]:.1f}" if title in drops else "-",
                about.difference(line, lines["IID"]),
                about.terminal(line),
                about.seeds(line),
                about.rounds_run(line),
            ]
        )
    columns = ("environment", "points against IID, paper", "ours", "terminal accuracy", "seeds", "rounds")
    return [
        words,
        Table(columns, rows),
        *about.curves("figure-2", "Fig. 2: test accuracy by environment", lines, about.missing("Figure 2", "figure-2")),
    ]


def _figure_4(about: _About) -> list[Part]:
    lines = {TITLES[name]: about.line(OBSERVED, name) for name in (BASELINE, OURS)}
    measured = {title: [r for r in line.values() if r.measurements] for title, line in lines.items()}
    words = (
        "The reward R of eq. 16 of every client, as if it took part in the next round, measured on the model after a "
        f"round; {about.scale.group} clients in each of six observation groups at α = 0, 0.2, … 1 among others with α "
        "uniform in [0, 1]. The paper shows that rewards drift but order the groups in any round, with some overlap; "
        "it gives no numbers."
    )
    if not any(measured.values()):
        return [words, about.missing("Figure 4", "figure-4")]
    rounds = sorted({one["round"] for runs in measured.values() for run in runs for one in run.measurements})
    rows = []
    for title, runs in measured.items():
        cells = []
        for at in rounds:
            values = [_rank_correlation(run, at) for run in runs]
            there = [value for value in values if value is not None]
            cells.append(spread(Estimate.of(there), "{:.2f}", 1.0) if there else "-")
        rows.append([title, *cells, str(len(runs))])
    columns = ("selection", *(f"round {at:,}" for at in rounds), "seeds")
    parts: list[Part] = [words, "Rank correlation (Spearman) of R with α over all clients:", Table(columns, rows)]
    runs = measured[TITLES[BASELINE]] or measured[TITLES[OURS]]
    run = runs[0]
    series = []
    for place, alpha in enumerate(OBSERVED_ALPHAS):
        groups = [_observed(run, one["scores"])[place] for one in run.measurements]
        series.append(
            Series(
                f"α = {alpha:g}",
                [one["round"] for one in run.measurements],
                [float(np.nanmedian(group)) for group in groups],
                [float(np.nanmin(group)) for group in groups],
                [float(np.nanmax(group)) for group in groups],
            )
        )
    parts.append(Chart("figure-4a", "Fig. 4 left: reward by group, median and range", ROUND, "R", series, "lines"))
    middle = min(run.measurements, key=lambda one: abs(one["round"] - about.scale.rounds / 2))
    scores = numbers(middle["scores"])
    sound = np.isfinite(scores)
    points = Series("clients", np.array(run.skew)[sound].tolist(), scores[sound].tolist())
    title = f"Fig. 4 right: reward and skew of all clients after round {middle['round']}"
    parts.append(Chart("figure-4b", title, "α", "R", [points], "points"))
    return parts


def _observed(run: Result, scores: Sequence[float | None]) -> list[FloatArray]:
    """The scores of the six observation groups, which are the last clients."""
    size = int(run.config["environment"]["group"])
    return np.split(numbers(scores)[-len(OBSERVED_ALPHAS) * size :], len(OBSERVED_ALPHAS))


def _rank_correlation(run: Result, at: int) -> float | None:
    for one in run.measurements:
        if one["round"] == at:
            scores = numbers(one["scores"])
            return float(
                stats.spearmanr(np.array(run.skew)[np.isfinite(scores)], scores[np.isfinite(scores)]).statistic
            )
    return None


def _figure_5(about: _About) -> list[Part]:
    largest = max(about.scale.client_numbers)
    lines = {f"{count} clients": about.line("iid", BASELINE, f"clients{count}") for count in about.scale.client_numbers}
    words = (
        f"IID clients of {about.scale.own_samples} samples, {about.scale.cohort} a round, and fewer and fewer of them. "
        "The paper shows that fewer data end lower and begin as fast; it gives no numbers."
    )
    whole = lines[f"{largest} clients"]
    rows = [[title, *about.compared(line, whole)] for title, line in lines.items()]
    columns = ("clients", "terminal accuracy", f"points against {largest} clients", "seeds", "rounds")
    return [
        words,
        Table(columns, rows),
        *about.curves(
            "figure-5", "Fig. 5: test accuracy by number of clients", lines, about.missing("Figure 5", "figure-5")
        ),
    ]


def _figure_6(about: _About) -> list[Part]:
    parts: list[Part] = ["Test accuracy over rounds, mean and 95 % interval over seeds."]
    for environment in ENVIRONMENTS:
        lines = {TITLES[REFERENCE]: about.line(ANY, REFERENCE)}
        lines |= {about.title(m): about.line(environment.name, m) for m in about.selecting(environment)}
        own = {title: line for title, line in lines.items() if title != TITLES[REFERENCE]}
        if not any(own.values()):
            parts.append(
                not_yet(
                    f"Figure 6, {environment.title}",
                    f"{about.command} --only table-2 --environments {environment.name}",
                )
            )
            continue
        name = f"figure-6-{environment.name}"
        parts += about.curves(name, f"Fig. 6: {environment.title}", lines, about.missing("Figure 6", "table-2"))
    return parts


def _figure_7(about: _About) -> list[Part]:
    pools = sorted((*about.scale.pools, POOL))
    lines, base = about.over_values("uniform", OURS, {pool: _pool_variant(pool) for pool in pools}, BASELINE)
    words = (
        "Terminal accuracy by λ, the share of the clients that the pool holds; uniform environment. In the paper it "
        "rises from λ = 0.05, which ends below random selection, to 0.4 and falls again to 1, which is random "
        "selection; only the curves are given. Ours "
        "are over the seeds that all values have."
    )
    rows = [[f"{pool:g}", *about.compared(line, base)] for pool, line in lines.items()]
    parts: list[Part] = [words, Table(("λ", "ours", "points against random", "seeds", "rounds"), rows)]
    series = about.by_value(lines, OURS, base, BASELINE)
    if not series:
        return [*parts, about.missing("Figure 7", "figure-7")]
    return [*parts, Chart("figure-7", "Fig. 7: terminal accuracy by λ", "λ", ACCURACY, series, "both")]


def _pool_variant(pool: float) -> str:
    return "" if pool == POOL else f"pool{pool:g}"


def _figure_8(about: _About) -> list[Part]:
    lines = {about.title(m): about.line("uniform", m) for m in about.selecting(ENVIRONMENTS[0])}
    there = {title: line for title, line in lines.items() if line}
    words = (
        "Mean α of the invited clients, uniform environment. In the paper that of FedACS falls quickly and settles by "
        "round 200, and its mean R rises above that of random selection; only the curves are given. A client "
        "with few classes is easy to fit, so a high loss and little skew go together: selection by loss alone (Oort as "
        "compared) finds clients with little skew too, while the model is young."
    )
    if not there:
        return [words, about.missing("Figure 8", "figure-8")]
    early, late = max(1, about.scale.rounds // 20), max(1, about.scale.rounds // 5)
    rows, series = [], []
    for title, line in there.items():
        columns = [result.cohort_skew for result in line.values()]
        rounds, means = mean_by_window(columns)
        series.append(Series(title, rounds, means, place=about.places.get(title)))
        spans = ((0, early), (late - early, late), (about.scale.rounds - early, about.scale.rounds))
        rows.append([title, *(_mean_skew(columns, *span) for span in spans), about.seeds(line)])
    lowest = np.mean([np.mean(np.sort(r.skew)[: round(POOL * len(r.skew))]) for r in _all_runs(there)])
    names = (
        f"rounds 1 to {early:,}",
        f"{late - early + 1:,} to {late:,}",
        f"{about.scale.rounds - early + 1:,} to {about.scale.rounds:,}",
    )
    parts: list[Part] = [
        words,
        Table(("selection", *names, "seeds"), rows),
        f"The least skewed {100 * POOL:.0f} % of the clients have a mean α of {lowest:.2f}.",
        Chart("figure-8", "Fig. 8: mean α of the invited clients", ROUND, "mean α", series),
    ]
    rewards = []
    for name in (BASELINE, OURS):
        runs = [result for result in about.line(OBSERVED, name).values() if result.measurements]
        if runs:
            at = [one["round"] for one in runs[0].measurements]
            values = [
                float(np.nanmean([np.nanmean(numbers(one["scores"])[one["cohort"]]) for one in measured]))
                for measured in zip(*(run.measurements for run in runs), strict=False)
            ]
            rewards.append(Series(TITLES[name], at[: len(values)], values, place=about.places[TITLES[name]]))
    if rewards:
        parts.append(Chart("figure-8b", "Fig. 8: mean R of the next cohort", ROUND, "mean R", rewards, "both"))
    else:
        parts.append(about.missing("The rewards of figure 8", "figure-4"))
    return parts


def _all_runs(lines: dict[str, dict[int, Result]]) -> list[Result]:
    return [result for line in lines.values() for result in line.values()]


def _mean_skew(columns: Sequence[Sequence[float | None]], begin: int, end: int) -> str:
    values = [value for column in columns if len(column) >= end for value in column[begin:end] if value is not None]
    return f"{np.mean(values):.2f}" if values else "-"


def _figure_9(about: _About) -> list[Part]:
    small = about.scale.small_pool
    lines = {
        f"FedACS, λ = {POOL:g}": (about.line("uniform", OURS), POOL),
        f"FedACS, λ = {small:g}": (about.line("uniform", OURS, _pool_variant(small)), small),
        "random": (about.line("uniform", BASELINE), POOL),
    }
    words = (
        "How often each client was invited, clients in order of their α, uniform environment, mean over seeds. In the "
        "paper the first λN clients are invited far more often than the rest; only the bars are given."
    )
    rows, series = [], []
    for title, (line, pool) in lines.items():
        if not line:
            rows.append([title, f"{100 * pool:.0f} %", MISSING, "0", "0"])
            continue
        hits = np.mean([np.array(r.hits)[np.argsort(r.skew, kind="stable")] for r in line.values()], axis=0)
        series.append(Series(title, list(range(1, len(hits) + 1)), hits.tolist()))
        shares = [_share_of_lowest(result, pool) for result in line.values()]
        share = spread(Estimate.of(shares)) + " %"
        rows.append([title, f"{100 * pool:.0f} %", share, about.seeds(line), about.rounds_run(line)])
    columns = ("selection", "least skewed clients", "invitations that went to them", "seeds", "rounds")
    parts: list[Part] = [words, Table(columns, rows)]
    if not series:
        return [*parts, about.missing("Figure 9", "figure-9")]
    title = "Fig. 9: invitations by rank of skew"
    return [*parts, Chart("figure-9", title, "clients by α, the least skewed first", "invitations", series)]


def _share_of_lowest(result: Result, pool: float) -> float:
    """Share of all invitations that went to the `pool` least skewed clients."""
    order = np.argsort(result.skew, kind="stable")[: round(pool * len(result.skew))]
    return float(np.array(result.hits)[order].sum() / max(1, sum(result.hits)))


def _figure_10(about: _About) -> list[Part]:
    stop, rounds = about.scale.early_stop, about.scale.rounds
    variants = {TITLES[OURS]: "", f"FedACS, insights for {stop} rounds": f"early{stop}"}
    lines = on_common_seeds({title: about.line("uniform", OURS, variant) for title, variant in variants.items()})
    whole = lines[TITLES[OURS]]
    epochs = int(about.scale.authors["epochs"])
    papers = {TITLES[OURS]: ("0.69", "< 20"), f"FedACS, insights for {stop} rounds": ("0.14", "< 4")}
    rows = []
    for title, line in lines.items():
        share = 1.0 if line is whole else min(1.0, stop / rounds)
        rows.append(
            [
                title,
                about.terminal(line),
                about.difference(line, whole),
                papers[title][0],
                _overhead(line),
                papers[title][1],
                f"{100 * share / epochs:.1f}",
                about.seeds(line),
                about.rounds_run(line),
            ]
        )
    columns = (
        "insights",
        "terminal accuracy",
        "points against FedACS",
        "bytes added, paper (%)",
        "ours (%)",
        "client work added, paper (%)",
        "passes over samples added (%)",
        "seeds",
        "rounds",
    )
    parts: list[Part] = [
        "Uniform environment. In the paper the two curves almost overlap. Bytes added are those of the insights over "
        "all other bytes, up and down, as counted from the messages; passes over samples count an insight as one more "
        f"beside the {epochs} of training, although the last layer's gradient takes only its forward half. Both lines "
        "are over the seeds that both have.",
        Table(columns, rows),
    ]
    return [*parts, *about.curves("figure-10", "Fig. 10: early stop", lines, about.missing("Figure 10", "figure-10"))]


def _overhead(line: Line) -> str:
    """Bytes of measurements over all others, in percent."""
    shares = []
    for result in line.values():
        up, down, probes = (result.evaluated[name][-1] for name in ("bytes_up", "bytes_down", "probe_bytes"))
        shares.append(probes / max(1, up + down - probes))
    return f"{100 * np.mean(shares):.2f}" if shares else MISSING


_SECTIONS: dict[str, Callable[[_About], list[Part]]] = {
    "Table II: terminal accuracy": _table_2,
    "Table III: rounds to a target": _table_3,
    "Local training, authors' code and as printed": _recipes,
    "Figure 2: what skew costs": _figure_2,
    "Figure 4: do scores tell skew?": _figure_4,
    "Figure 5: what few data cost": _figure_5,
    "Figure 6: learning curves": _figure_6,
    "Figure 7: size of the pool": _figure_7,
    "Figure 8: whom the bandit invites": _figure_8,
    "Figure 9: invitations by skew": _figure_9,
    "Figure 10: early stop and overhead": _figure_10,
}
