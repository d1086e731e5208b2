"""FedDRL's tables and figures from stored runs, the paper's numbers beside ours."""

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from covey.comparison import Estimate
from covey.environments import FloatArray
from covey.experiments.feddrl import (
    BASELINE,
    CONTROL,
    DELTA,
    FEDERATED,
    METHODS,
    ONLINE,
    OURS,
    REFERENCE,
    SET,
    SPLITS,
    TITLES,
    WITH_AGENT,
    Data,
    FedDRLScale,
    environment_name,
)
from covey.experiments.feddrl_lines import (
    CLUSTERED,
    DRLLines,
    best,
    client_loss,
    environments,
    paired,
    rounds_to_lowest,
    usual,
    weights,
)
from covey.experiments.feddrl_printed import AGGREGATION_SECONDS, DECISION_SECONDS, printed
from covey.experiments.lines import ACCURACY, ROUND
from covey.experiments.pages import (
    Chart,
    Page,
    Part,
    Series,
    Table,
    accuracy_series,
    assembled,
    cell,
    clearness,
    command_of,
    counted,
    different,
    joined,
    methods_in,
    runs_table,
    spread,
    usable,
)
from covey.experiments.plan import Paper
from covey.experiments.statistics import Line, on_common_seeds
from covey.experiments.store import Store

_SERVER = "server.json"
"""Beside the results: what `benchmarks/server.py` has measured."""


def page_of(paper: Paper, scale: FedDRLScale, store: Store) -> Page:
    """The page of one scale."""
    present = methods_in(store, METHODS)
    kept, notes = usable(paper, scale, store, present)
    about = DRLLines(scale, kept, command_of(paper, scale), present)
    title = "FedDRL, a trial of the machinery" if scale.local_only else "FedDRL, reproduced"
    runs = runs_table(kept, lambda environment, method, variant: about.planned(method))
    return assembled(scale, title, about, [*_opening(about), *_in_words(about)], _SECTIONS, runs, notes)


def _opening(about: DRLLines) -> list[Part]:
    scale, local = about.scale, about.scale.local
    numbers = (scale.few, scale.many)
    sizes = joined([f"{scale.first.each('ce', clients):,} with {clients} clients" for clients in numbers])
    return [
        'Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated '
        'Learning", ICPP 2022: its tables and figures beside what Covey measures.',
        f"Made by `{about.command} --only tables` from the {len(about.store)} runs in `{scale.store}` of the results "
        f"folder, and from nothing else. Settings: {scale.few} clients, all in every round, or {scale.many}, of which "
        f"{scale.cohort} a round; {counted(int(local['epochs']), 'epoch')} in batches of {local['batch']} at a rate of "
        f"{local['rate']:g}; {scale.rounds:,} rounds. CE: {DELTA:.0%} of the clients hold the same labels, the others "
        "different ones, sizes equal; CN: the same, sizes ±20 %; PA: sizes by a power law. No two clients hold the "
        f"same sample, which leaves a client of {scale.first.title} {sizes} in CE (the authors' lists have about 300 "
        "for 100 clients, which takes sharing). SingleSet is plain SGD on the data of all clients, "
        f"{scale.single_rounds * int(local['epochs'])} passes over them.",
        f"Agents are trained in two stages, by {scale.workers} workers over {scale.worker_rounds} rounds each on a "
        "federation of the same kind with another seed, and decide without learning further; what learning in the run "
        'itself does is under "Agents without a first stage". Their options are the defaults of `feddrl` (the reading '
        "of the paper that its authors' code has: means softmaxed, deviations at most a tenth, rewards negated) "
        'and of `feddrl-set`. "Loss softmax" is the control that an agent has to beat: impact factor = softmax of '
        "8 x l_b / Σ l_b.",
        "Accuracy is the best over all evaluations, in percent, as in the paper, where nothing else is said. ± is half "
        "of Student's 95 % interval over seeds; differences are taken seed by seed, up to the last round that both "
        "have come to. Where two or more seeds are at their end, figures are over these alone, and others are counted "
        'as under way; a figure of runs that are still under way is marked "so far". The paper gives neither seeds nor '
        "intervals.",
        "**CIFAR-100.** The paper's figures under this name are no target. The authors' runs loaded CIFAR-10 while "
        "their lists of samples were made for CIFAR-100, as their public logs say, and maxima in those logs are the "
        "printed figures; laid over CIFAR-10 these lists make clients that are close to IID. Here it is CIFAR-100.",
    ]


def _in_words(about: DRLLines) -> list[Part]:
    """The result on the first environments in a sentence each."""
    said = []
    data, clients = about.scale.first, about.scale.many
    for split in CLUSTERED:
        name = environment_name(data, split, clients)
        lines = {method: about.line(name, method) for method in METHODS}
        paper = printed(data.name, clients, split)
        for method, base in ((OURS, BASELINE), (SET, BASELINE), (SET, CONTROL)):
            pair, usually = (paired(lines[method], lines[base], figure) for figure in (best, usual))
            if pair is None or usually is None:
                continue
            sentence = (
                f"{data.title}, {clients} clients, {SPLITS[split]}: the best accuracy of {TITLES[method]} is "
                f"{about.points(pair)} points from that of {TITLES[base]} ({clearness(pair)}"
            )
            if base == BASELINE and paper:
                sentence += f"; in the paper FedDRL's is {paper[OURS] - paper[BASELINE]:+.2f}"
            said.append(
                f"- {sentence}), the mean over the second half of the rounds {about.points(usually)} points "
                f"({clearness(usually)})."
            )
    return ["\n".join(said)] if said else []


def _table(about: DRLLines, splits: Sequence[str], group: str) -> list[Part]:
    columns = (
        "data",
        "clients",
        "split",
        "method",
        "paper",
        "ours, best",
        "ours, last rounds",
        "points against FedAvg, paper",
        "ours",
        "seeds",
        "rounds",
    )
    rows, absent = [], []
    for data, split, clients, name in environments(about.scale, splits):
        base, paper = about.line(name, BASELINE), printed(data.name, clients, split)
        if not any(about.line(name, method) for method in about.methods):
            absent.append(name)
            continue
        for method in about.shown(name, METHODS):
            line = about.line(name, method)
            theirs = paper.get(method)
            against = "-" if theirs is None or method in (BASELINE, REFERENCE) else f"{theirs - paper[BASELINE]:+.2f}"
            rows.append(
                [
                    data.title,
                    str(clients),
                    SPLITS[split],
                    about.title(method),
                    cell(theirs, "{:.2f}"),
                    about.best_of(line),
                    about.spread(about.estimate(line)) if line else "-",
                    against,
                    "-" if method in (BASELINE, REFERENCE) else about.above(line, base),
                    about.seeds(line),
                    about.rounds_run(line),
                ]
            )
    parts: list[Part] = [Table(columns, rows)] if rows else []
    if absent:
        parts.append(f"Not run yet: {joined(absent)}. To run one: `{about.command} --only {group} --environments NAME`")
    return parts


def _table_3(about: DRLLines) -> list[Part]:
    return _table(about, ("pa", "ce", "cn"), "table-3")


def _usual(about: DRLLines) -> list[Part]:
    """Accuracy that does not depend on when one looks."""
    words = (
        "Accuracy swings from round to round with who takes part, and the best of some hundred evaluations is picked "
        "with the test set at hand. This is the mean over all evaluations in the second half of the rounds: what a "
        "model has that is taken at any time."
    )
    columns = ("data", "clients", "split", "method", "ours", "points against FedAvg", "against loss softmax", "seeds")
    rows = []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        lines = about.lines(name)
        base, control = lines.get(BASELINE), lines.get(CONTROL)
        for method, line in lines.items():
            rows.append(
                [
                    data.title,
                    str(clients),
                    SPLITS[split],
                    about.title(method),
                    about.usual_of(line),
                    "-" if method == BASELINE or not base else about.above(line, base, usual),
                    "-" if method == CONTROL or not control else about.above(line, control, usual),
                    about.seeds(line),
                ]
            )
    return [words, Table(columns, rows)] if rows else [about.missing("Usual accuracy", "table-3")]


def _table_4(about: DRLLines) -> list[Part]:
    words = (
        "McMahan's shards: samples sorted by label, cut, and handed out at random, two to a client (Equal), or 6 to 14 "
        "smaller ones (Non-equal)."
    )
    return [words, *_table(about, ("equal", "unequal"), "table-4")]


def _figure_5(about: DRLLines) -> list[Part]:
    parts: list[Part] = [
        "Accuracy swings by tens of points from one evaluation to the next, so every point is the mean over the last "
        "twentieth of the evaluations of a whole run."
    ]
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        lines = about.lines(name)
        if lines:
            title = f"Fig. 5: {data.title}, {clients} clients, {SPLITS[split]}"
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
                title = f"Fig. 6: {figure} of clients' losses relative to FedDRL's, {data.title}, {clients} clients, "
                parts.append(
                    Chart(f"figure-6-{name}-{figure}", title + SPLITS[split], ROUND, f"{figure}, relative", series)
                )
        for method, line in lines.items():
            ends = [client_loss(line, figure) for figure in ("mean", "variance", "gap")]
            cells = ["-" if end is None else f"{np.nanmean(end[1][-max(1, len(end[1]) // 20) :]):.3g}" for end in ends]
            rows.append([data.title, str(clients), SPLITS[split], TITLES[method], *cells, about.seeds(line)])
    if not rows:
        return [*parts, about.missing("Figure 6", "table-3")]
    columns = ("data", "clients", "split", "method", "mean loss", "variance", "gap", "seeds")
    return [*parts, "Over the last twentieth of the evaluations:", Table(columns, rows)]


def _smooth(values: FloatArray) -> FloatArray:
    """Means over up to 9 neighbouring evaluations: a cohort's losses jump from round to round."""
    width = min(9, len(values))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    smooth: FloatArray = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    return smooth


def _weights(about: DRLLines) -> list[Part]:
    rows = []
    for data, split, clients, name in environments(about.scale, CLUSTERED):
        for method in FEDERATED:
            found = weights(about.line(name, method), clients, min(about.scale.cohort, clients))
            if found is not None:
                main, others = (spread(one, "{:.2f}", 1.0) for one in found)
                rows.append([data.title, str(clients), SPLITS[split], TITLES[method], main, others])
    words = (
        "Mean impact factor of a client in the rounds that it took part in, as a multiple of an equal share, in the "
        f"main group ({DELTA:.0%} of the clients, with the same labels) and outside it."
    )
    if not rows:
        return [words, about.missing("Impact factors", "table-3")]
    return [words, Table(("data", "clients", "split", "method", "main group", "others"), rows)]


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


def _figure_9(about: DRLLines) -> list[Part]:
    rows = []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        for method, line in about.lines(name).items():
            taken = [1e3 * run.seconds.get("aggregation", 0.0) / run.rounds for run in line.values() if run.rounds]
            device = different([run.device for run in line.values()])
            rows.append([data.title, f"{clients}, {SPLITS[split]}", TITLES[method], f"{np.mean(taken):.2f}", device])
    theirs = joined([f"{1e3 * value:g} ms with {model}" for model, value in AGGREGATION_SECONDS.items()])
    parts: list[Part] = [
        f"The paper: {1e3 * DECISION_SECONDS:g} ms for a decision, and for aggregation {theirs}. Below is what all of "
        "the server's part took in a round of these runs (checks of what arrived, decision, aggregation), in "
        "milliseconds; in lockstep with others, who share the machine. Agents that learn in the run are not among "
        "them: in lockstep they learn together, on one run's account.",
    ]
    if rows:
        parts.append(Table(("data", "clients, split", "method", "ms a round", "device"), rows))
    measured = _server(about.store)
    if measured:
        parts += ["Measured by itself on a CPU (`benchmarks/server.py`):", Table(("", "median, ms"), measured)]
    return parts if rows or measured else [*parts, about.missing("Figure 9", "table-3")]


def _server(store: Store) -> list[list[str]]:
    """What the server benchmark says of the agent and of aggregation, where it was run."""
    path = store.folder.parent / _SERVER
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        [row["about"], f"{1e3 * row['median_seconds']:.2f}"]
        for name, row in rows.items()
        if name.startswith(("feddrl", "average"))
    ]


def _figure_10(about: DRLLines) -> list[Part]:
    rows = []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        found = rounds_to_lowest(about.lines(name))
        if found is not None:
            target, taken = found
            cells = [spread(taken[method], "{:.0f}", 1.0) if method in taken else "-" for method in FEDERATED]
            rows.append([data.title, str(clients), SPLITS[split], about.spread(target), *cells])
    words = (
        "Rounds to the lowest of the methods' best accuracies, seed by seed. The paper finds FedDRL always about as "
        "fast as the fastest."
    )
    if not rows:
        return [words, about.missing("Figure 10", "table-3")]
    columns = ("data", "clients", "split", "accuracy", *(TITLES[method] for method in FEDERATED))
    return [words, Table(columns, rows)]


def _online(about: DRLLines) -> list[Part]:
    scale, rows = about.scale, []
    any_there = False
    for split in CLUSTERED:
        name = environment_name(scale.first, split, scale.many)
        base = about.line(name, BASELINE)
        for method in WITH_AGENT:
            both: dict[str, Line] = {"two stages": about.line(name, method), ONLINE: about.line(name, method, ONLINE)}
            any_there = any_there or bool(both[ONLINE])
            for label, line in both.items():
                cells = [about.best_of(line), about.above(line, base), about.seeds(line), about.rounds_run(line)]
                rows.append([SPLITS[split], TITLES[method], label, *cells])
    words = (
        f"{scale.first.title}, {scale.many} clients: agents as in the tables, and agents that begin untrained and "
        "learn in the run itself, as the authors' scripts do."
    )
    if not any_there:
        return [words, about.missing("Agents without a first stage", ONLINE)]
    columns = ("split", "method", "agent", "best accuracy", "points against FedAvg", "seeds", "rounds")
    return [words, Table(columns, rows)]


_SECTIONS: dict[str, Callable[[DRLLines], list[Part]]] = {
    "Table 3: best accuracy": _table_3,
    "Accuracy at any time": _usual,
    "Figure 5: accuracy over rounds": _figure_5,
    "Figure 6: how evenly clients are served": _figure_6,
    "How much clients count": _weights,
    "Agents without a first stage": _online,
    "Figure 7: clients in a round": _figure_7,
    "Figure 8: size of the main group": _figure_8,
    "Figure 9: time on the server": _figure_9,
    "Figure 10: rounds to the lowest of the best": _figure_10,
    "Table 4: shards": _table_4,
}
