"""FedDRL's tables, and its figures 9 and 10 as tables, the paper's numbers beside ours."""

import json
from collections.abc import Sequence

import numpy as np

from papers.feddrl import (
    BASELINE,
    CONTROL,
    DELTA,
    FEDERATED,
    METHODS,
    ONLINE,
    REFERENCE,
    RULE,
    SET,
    SHARDS,
    SPLITS,
    TITLES,
    WITH_AGENT,
    Data,
    environment_name,
)
from papers.feddrl_lines import (
    CLUSTERED,
    DRLLines,
    best,
    called,
    environments,
    rounds_to_lowest,
    usual,
    weights,
)
from papers.feddrl_printed import AGGREGATION_SECONDS, DECISION_SECONDS, printed
from papers.feddrl_words import fastest_in_words, moved_in_words
from papers.pages import Part, Table, bullets, cell, different, joined, spread
from papers.statistics import Line
from papers.store import Store

_SERVER = "server.json"
"""Beside the results: what `benchmarks/server.py` has measured."""

PLACE = ("data", "clients", "split")


def place(data: Data, clients: int, split: str) -> list[str]:
    """Which environment a row is about: cells below `PLACE`."""
    return [data.title, str(clients), SPLITS[split]]


def table_3(about: DRLLines) -> list[Part]:
    return _table(about, ("pa", "ce", "cn"), "table-3")


def table_4(about: DRLLines) -> list[Part]:
    words = (
        "McMahan's shards: samples sorted by label, cut, and handed out at random, two to a client (Equal), or 6 to 14 "
        "smaller ones (Non-equal)."
    )
    return [words, *_table(about, SHARDS, "table-4")]


def _table(about: DRLLines, splits: Sequence[str], group: str) -> list[Part]:
    columns = (
        *PLACE,
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
                    *place(data, clients, split),
                    about.title(method),
                    cell(theirs, "{:.2f}"),
                    about.best_of(line),
                    about.spread(about.estimate(line)) + about.so_far(line) if line else "-",
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


def any_time(about: DRLLines) -> list[Part]:
    """Accuracy that does not depend on when one looks."""
    words = (
        "Accuracy swings from round to round with who takes part, and the best of some hundred evaluations is picked "
        "with the test set at hand. This is the mean over all evaluations in the second half of the rounds: what a "
        "model has that is taken at any time."
    )
    columns = (*PLACE, "method", "ours", "points against FedAvg", "against loss softmax", "seeds")
    rows = []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        lines = about.lines(name)
        base, control = lines.get(BASELINE), lines.get(CONTROL)
        for method, line in lines.items():
            rows.append(
                [
                    *place(data, clients, split),
                    about.title(method),
                    about.usual_of(line),
                    "-" if method == BASELINE or not base else about.above(line, base, usual),
                    "-" if method == CONTROL or not control else about.above(line, control, usual),
                    about.seeds(line),
                ]
            )
    return [words, Table(columns, rows)] if rows else [about.missing("Usual accuracy", "table-3")]


def impact_factors(about: DRLLines) -> list[Part]:
    rows = []
    for data, split, clients, name in environments(about.scale, CLUSTERED):
        for method in FEDERATED:
            found = weights(about.line(name, method), clients, min(about.scale.cohort, clients))
            if found is not None:
                main, others = (spread(one, "{:.2f}", 1.0) + about.so_far(about.line(name, method)) for one in found)
                rows.append([*place(data, clients, split), TITLES[method], main, others])
    words = (
        "Mean impact factor of a client in the rounds that it took part in, as a multiple of an equal share, in the "
        f"main group ({DELTA:.0%} of the clients, with the same labels) and outside it."
    )
    if not rows:
        return [words, about.missing("Impact factors", "table-3")]
    return [words, Table((*PLACE, "method", "main group", "others"), rows)]


def rule(about: DRLLines) -> list[Part]:
    """What of FedDRL for sets is learned."""
    scale, rows, said = about.scale, [], []
    there = False
    for split in CLUSTERED:
        name = environment_name(scale.first, split, scale.many)
        untaught, taught = about.line(name, SET, RULE), about.line(name, SET)
        there = there or bool(untaught)
        others = {"FedAvg": about.line(name, BASELINE), "loss softmax": about.line(name, CONTROL)}
        for label, line in (("as it begins", untaught), ("two stages", taught)):
            points = [about.above(line, other, figure) for other in others.values() for figure in (best, usual)]
            rows.append([SPLITS[split], label, about.best_of(line), *points, about.seeds(line), about.rounds_run(line)])
        differences = [about.above(taught, untaught, figure) for figure in (best, usual)]
        rows.append([SPLITS[split], "what learning adds", "-", *differences, "-", "-", "-", "-"])
        said += moved_in_words(about, SPLITS[split], "learning in two stages", taught, untaught)
    words = (
        f"{scale.first.title}, {scale.many} clients. The agent of FedDRL for sets begins as a rule: a softmax of what "
        "it remembers of each client's loss relative to the others' (see `feddrl-set`), which learning then changes. "
        "So what it gains over others may be the rule's, and what is learned is the difference to that. Points against "
        "FedAvg and against loss softmax, by the best accuracy and by the mean over the second half of the rounds; in "
        "the last row of a split, the agent's against the rule's."
    )
    if not there:
        return [words, about.missing("FedDRL for sets without learning", RULE)]
    against = [f"against {other}, {figure}" for other in ("FedAvg", "loss softmax") for figure in ("best", "usual")]
    return [words, Table(("split", "agent", "best accuracy", *against, "seeds", "rounds"), rows), *bullets(said)]


def online(about: DRLLines) -> list[Part]:
    scale, rows, said = about.scale, [], []
    any_there = False
    for split in CLUSTERED:
        name = environment_name(scale.first, split, scale.many)
        base = about.line(name, BASELINE)
        for method in WITH_AGENT:
            both: dict[str, Line] = {"two stages": about.line(name, method), ONLINE: about.line(name, method, ONLINE)}
            any_there = any_there or bool(both[ONLINE])
            for label, line in both.items():
                points = [about.above(line, base, figure) for figure in (best, usual)]
                cells = [about.best_of(line), *points, about.seeds(line), about.rounds_run(line)]
                rows.append([SPLITS[split], TITLES[method], label, *cells])
            what = f"learning in the run instead of two stages before it, with {TITLES[method]},"
            said += moved_in_words(about, SPLITS[split], what, both[ONLINE], both["two stages"])
    words = (
        f"{scale.first.title}, {scale.many} clients: agents as in the tables, and agents that begin untrained and "
        "learn in the run itself, as the authors' scripts do. Points by the best accuracy and by the mean over the "
        "second half of the rounds."
    )
    if not any_there:
        return [words, about.missing("Agents without a first stage", ONLINE)]
    against = ("against FedAvg, best", "against FedAvg, usual")
    columns = ("split", "method", "agent", "best accuracy", *against, "seeds", "rounds")
    return [words, Table(columns, rows), *bullets(said)]


def figure_9(about: DRLLines) -> list[Part]:
    rows = []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        for method, line in about.lines(name).items():
            taken = [1e3 * run.seconds.get("aggregation", 0.0) / run.rounds for run in line.values() if run.rounds]
            if not taken:
                continue
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


def figure_10(about: DRLLines) -> list[Part]:
    rows, said = [], []
    for data, split, clients, name in environments(about.scale, ("pa", "ce", "cn")):
        found = rounds_to_lowest(about.lines(name))
        if found is not None:
            target, taken = found
            cells = [spread(taken[method], "{:.0f}", 1.0) if method in taken else "-" for method in FEDERATED]
            waiting = next(filter(None, map(about.so_far, about.lines(name).values())), "")
            rows.append([*place(data, clients, split), about.spread(target) + waiting, *cells])
            said.append(fastest_in_words(called(data, clients, split), taken))
    words = (
        "Rounds to the lowest of the methods' best accuracies, seed by seed. The paper finds FedDRL always about as "
        "fast as the fastest."
    )
    if not rows:
        return [words, about.missing("Figure 10", "table-3")]
    columns = (*PLACE, "accuracy", *(TITLES[method] for method in FEDERATED))
    return [words, Table(columns, rows), *bullets(said)]
