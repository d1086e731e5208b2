"""FedDRL's tables, and figures 9 and 10 as tables, the paper's numbers beside ours."""

import json
from collections.abc import Sequence

import numpy as np

from covey.job.comparison.statistics import best_accuracy
from papers.curves import Line
from papers.feddrl.printed import AGGREGATION_SECONDS, DECISION_SECONDS, printed_accuracy
from papers.feddrl.results import (
    CLUSTERED,
    FedDRLResults,
    environment_title,
    environments,
    group_weights,
    rounds_to_lowest,
    usual_accuracy,
)
from papers.feddrl.scales import (
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
from papers.feddrl.text import PROSE, fastest_sentence, moved_sentence
from papers.page import Part, Table
from papers.store import Store
from papers.wording import bullets, cell, different, joined, spread

_SERVER = "server.json"
"""File beside the results with the measurements of `benchmarks/server.py`."""

PLACE = ("data", "clients", "split")


def place_cells(data: Data, clients: int, split: str) -> list[str]:
    """Return the cells of an environment below `PLACE`."""
    return [data.title, str(clients), SPLITS[split]]


def table_3(results: FedDRLResults) -> list[Part]:
    """Best accuracy on the paper's splits."""
    return _table(results, ("pa", "ce", "cn"), "table-3")


def table_4(results: FedDRLResults) -> list[Part]:
    """Best accuracy on shards."""
    return [PROSE("table-4"), *_table(results, SHARDS, "table-4")]


def _table(results: FedDRLResults, splits: Sequence[str], group: str) -> list[Part]:
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
    for data, split, clients, name in environments(results.scale, splits):
        base, paper = results.line(name, BASELINE), printed_accuracy(data.name, clients, split)
        if not any(results.line(name, method) for method in results.methods):
            absent.append(name)
            continue
        for method in results.shown(name, METHODS):
            line = results.line(name, method)
            theirs = paper.get(method)
            against = "-" if theirs is None or method in (BASELINE, REFERENCE) else f"{theirs - paper[BASELINE]:+.2f}"
            rows.append(
                [
                    *place_cells(data, clients, split),
                    results.title(method),
                    cell(theirs, "{:.2f}"),
                    results.best(line),
                    results.spread(results.estimate(line)) + results.so_far(line) if line else "-",
                    against,
                    "-" if method in (BASELINE, REFERENCE) else results.above(line, base),
                    results.seeds(line),
                    results.rounds_run(line),
                ]
            )
    parts: list[Part] = [Table(columns, rows)] if rows else []
    if absent:
        parts.append(
            f"Not run yet: {joined(absent)}. To run one: `{results.command} --only {group} --environments NAME`"
        )
    return parts


def any_time(results: FedDRLResults) -> list[Part]:
    """Mean accuracy over the second half of the rounds."""
    columns = (*PLACE, "method", "ours", "points against FedAvg", "against loss softmax", "seeds")
    rows = []
    for data, split, clients, name in environments(results.scale, ("pa", "ce", "cn")):
        lines = results.lines(name)
        base, control = lines.get(BASELINE), lines.get(CONTROL)
        for method, line in lines.items():
            rows.append(
                [
                    *place_cells(data, clients, split),
                    results.title(method),
                    results.usual(line),
                    "-" if method == BASELINE or not base else results.above(line, base, usual_accuracy),
                    "-" if method == CONTROL or not control else results.above(line, control, usual_accuracy),
                    results.seeds(line),
                ]
            )
    return [PROSE("any-time"), Table(columns, rows)] if rows else [results.missing("Usual accuracy", "table-3")]


def impact_factors(results: FedDRLResults) -> list[Part]:
    """Mean impact factor inside and outside the main group."""
    rows = []
    for data, split, clients, name in environments(results.scale, CLUSTERED):
        for method in FEDERATED:
            found = group_weights(results.line(name, method), clients, min(results.scale.cohort, clients))
            if found is not None:
                main, others = (
                    spread(one, "{:.2f}", 1.0) + results.so_far(results.line(name, method)) for one in found
                )
                rows.append([*place_cells(data, clients, split), TITLES[method], main, others])
    text = PROSE("impact-factors", delta=DELTA)
    if not rows:
        return [text, results.missing("Impact factors", "table-3")]
    return [text, Table((*PLACE, "method", "main group", "others"), rows)]


def rule(results: FedDRLResults) -> list[Part]:
    """FedDRL for sets as the rule it starts as, and trained."""
    scale, rows, sentences = results.scale, [], list[str]()
    found = False
    for split in CLUSTERED:
        name = environment_name(scale.first, split, scale.many)
        untrained, trained = results.line(name, SET, RULE), results.line(name, SET)
        found = found or bool(untrained)
        others = {"FedAvg": results.line(name, BASELINE), "loss softmax": results.line(name, CONTROL)}
        for label, line in (("untrained", untrained), ("two stages", trained)):
            points = [
                results.above(line, other, figure)
                for other in others.values()
                for figure in (best_accuracy, usual_accuracy)
            ]
            rows.append(
                [SPLITS[split], label, results.best(line), *points, results.seeds(line), results.rounds_run(line)]
            )
        differences = [results.above(trained, untrained, figure) for figure in (best_accuracy, usual_accuracy)]
        rows.append([SPLITS[split], "difference", "-", *differences, "-", "-", "-", "-"])
        sentences += moved_sentence(results, SPLITS[split], "learning in two stages", trained, untrained)
    text = PROSE("rule", data=scale.first.title, scale=scale)
    if not found:
        return [text, results.missing("FedDRL for sets without learning", RULE)]
    against = [f"against {other}, {figure}" for other in ("FedAvg", "loss softmax") for figure in ("best", "usual")]
    columns = ("split", "agent", "best accuracy", *against, "seeds", "rounds")
    return [text, Table(columns, rows), *bullets(sentences)]


def online(results: FedDRLResults) -> list[Part]:
    """Agents that learn in the run itself, beside those trained in two stages."""
    scale, rows, sentences = results.scale, [], list[str]()
    found = False
    for split in CLUSTERED:
        name = environment_name(scale.first, split, scale.many)
        base = results.line(name, BASELINE)
        for method in WITH_AGENT:
            both: dict[str, Line] = {
                "two stages": results.line(name, method),
                ONLINE: results.line(name, method, ONLINE),
            }
            found = found or bool(both[ONLINE])
            for label, line in both.items():
                points = [results.above(line, base, figure) for figure in (best_accuracy, usual_accuracy)]
                cells = [results.best(line), *points, results.seeds(line), results.rounds_run(line)]
                rows.append([SPLITS[split], TITLES[method], label, *cells])
            change = f"learning in the run instead of two stages before it, with {TITLES[method]},"
            sentences += moved_sentence(results, SPLITS[split], change, both[ONLINE], both["two stages"])
    text = PROSE("online", data=scale.first.title, scale=scale)
    if not found:
        return [text, results.missing("Agents without a first stage", ONLINE)]
    against = ("against FedAvg, best", "against FedAvg, usual")
    columns = ("split", "method", "agent", "best accuracy", *against, "seeds", "rounds")
    return [text, Table(columns, rows), *bullets(sentences)]


def figure_9(results: FedDRLResults) -> list[Part]:
    """Time of the server's part of a round."""
    rows = []
    for data, split, clients, name in environments(results.scale, ("pa", "ce", "cn")):
        for method, line in results.lines(name).items():
            taken = [1e3 * run.seconds.get("aggregation", 0.0) / run.rounds for run in line.values() if run.rounds]
            if not taken:
                continue
            device = different([run.device for run in line.values()])
            rows.append([data.title, f"{clients}, {SPLITS[split]}", TITLES[method], f"{np.mean(taken):.2f}", device])
    aggregation = joined([f"{1e3 * value:g} ms with {model}" for model, value in AGGREGATION_SECONDS.items()])
    parts: list[Part] = [PROSE("figure-9", decision=1e3 * DECISION_SECONDS, aggregation=aggregation)]
    if rows:
        parts.append(Table(("data", "clients, split", "method", "ms a round", "device"), rows))
    measured = server_rows(results.store, "feddrl", "average")
    if measured:
        parts += [PROSE("figure-9-server"), Table(("", "median, ms"), measured)]
    return parts if rows or measured else [*parts, results.missing("Figure 9", "table-3")]


def server_rows(store: Store, *names: str) -> list[list[str]]:
    """Return the rows of the server benchmark whose names begin so, if it was run: what was timed, and milliseconds."""
    path = store.folder.parent / _SERVER
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        [row["about"], f"{1e3 * row['median_seconds']:.2f}"] for name, row in rows.items() if name.startswith(names)
    ]


def figure_10(results: FedDRLResults) -> list[Part]:
    """Rounds to the lowest of the methods' best accuracies."""
    rows, sentences = [], []
    for data, split, clients, name in environments(results.scale, ("pa", "ce", "cn")):
        found = rounds_to_lowest(results.lines(name))
        if found is not None:
            target, taken = found
            cells = [spread(taken[method], "{:.0f}", 1.0) if method in taken else "-" for method in FEDERATED]
            unfinished = next(filter(None, map(results.so_far, results.lines(name).values())), "")
            rows.append([*place_cells(data, clients, split), results.spread(target) + unfinished, *cells])
            sentences.append(fastest_sentence(environment_title(data, clients, split), taken))
    if not rows:
        return [PROSE("figure-10"), results.missing("Figure 10", "table-3")]
    columns = (*PLACE, "accuracy", *(TITLES[method] for method in FEDERATED))
    return [PROSE("figure-10"), Table(columns, rows), *bullets(sentences)]
