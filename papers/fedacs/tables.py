"""Tables II and III of FedACS, and the effect of the authors' local training, the paper's numbers beside ours."""

from covey.job.comparison.statistics import Estimate, line_rounds_to_target, paired_values, share_of_gap, speed_up
from papers.curves import Line
from papers.fedacs.results import FedACSResults, minority_share, poisoned_invitations
from papers.fedacs.scales import (
    BASELINE,
    CLUSTERED,
    ENVIRONMENTS,
    OURS,
    PAPER_IID,
    POISONED,
    REFERENCE,
    RIVAL,
    TITLES,
    Environment,
)
from papers.fedacs.text import PROSE
from papers.grid import ANY
from papers.page import Part, Table
from papers.wording import MISSING, cell, percent, spread


def table_2(results: FedACSResults) -> list[Part]:
    """Terminal accuracy, and the share of the gap to IID that methods close."""
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
    iid = results.line(ANY, REFERENCE)
    rows = [_accuracy_row(results, None, REFERENCE, iid)]
    for environment in ENVIRONMENTS:
        for method in results.selecting(environment):
            rows.append(_accuracy_row(results, environment, method, results.line(environment.name, method)))
    return [Table(columns, rows), PROSE("table-2")]


def _accuracy_row(results: FedACSResults, environment: Environment | None, method: str, line: Line) -> list[str]:
    paper = PAPER_IID if environment is None else environment.accuracy.get(method)
    share = 100.0 if environment is None else environment.improvement.get(method)
    head = [
        "all" if environment is None else environment.title,
        results.title(method),
        cell(paper, "{:.1f}"),
    ]
    shares = cell(share, "{:.1f}")
    if not line:
        return [*head, MISSING, "-", "-", shares, "-", "0", "0"]
    own = results.estimate(line)
    difference = recovered = "-"
    if environment is not None and method != BASELINE:
        base = results.line(environment.name, BASELINE)
        difference = results.difference(line, base)
        recovered = percent(share_of_gap(*paired_values(results.accuracy, line, base, results.line(ANY, REFERENCE))))
    return [
        *head,
        results.terminal(line),
        f"{100 * own.median:.1f}",
        difference,
        shares,
        recovered,
        results.seeds(line),
        results.rounds_run(line),
    ]


def table_3(results: FedACSResults) -> list[Part]:
    """Rounds to each environment's target, and speed-up over random selection."""
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
        for method in results.selecting(environment):
            rows.append(_speed_row(results, environment, method, environment.target))
    return [Table(columns, rows), *PROSE.parts("table-3"), _targets(results)]


def _speed_row(results: FedACSResults, environment: Environment, method: str, target: float) -> list[str]:
    line, base = results.line(environment.name, method), results.line(environment.name, BASELINE)
    paper = environment.rounds.get(method)
    head = [environment.title, f"{100 * target:.0f}", results.title(method), cell(paper, "{:d}")]
    printed = cell(environment.speed_up.get(method), "{:.1f}x")
    if not line:
        return [*head, MISSING, "-", "-", printed, "-", "0", "0"]
    own = line_rounds_to_target(line, target)
    faster = None if method == BASELINE else speed_up(line, base, target)
    return [
        *head,
        results.to_target(line, target),
        "-" if own.rounds is None else f"{own.rounds.median:.0f}",
        "-" if faster is None else spread(faster.difference, "{:+.0f}", 1.0),
        printed,
        "-" if faster is None else f"{faster.factor:.2f}x",
        results.seeds(line),
        results.rounds_run(line),
    ]


def _targets(results: FedACSResults) -> Table:
    targets = results.scale.targets
    rows = [_targets_row(results, "all", REFERENCE, results.line(ANY, REFERENCE))]
    for environment in ENVIRONMENTS:
        for method in results.selecting(environment):
            line = results.line(environment.name, method)
            if line:
                rows.append(_targets_row(results, environment.title, method, line))
    return Table(
        ("environment", "method", *(f"{100 * target:.0f} %" for target in targets), "seeds", "rounds run"), rows
    )


def _targets_row(results: FedACSResults, environment: str, method: str, line: Line) -> list[str]:
    cells = [results.to_target(line, target) for target in results.scale.targets]
    run = results.rounds_run(line)
    return [environment, results.title(method), *cells, results.seeds(line), run]


def recipes(results: FedACSResults) -> list[Part]:
    """Accuracy with local training by the authors' code and by the text."""
    rows = []
    for title, variant in (("authors' code", ""), ("as printed", "printed")):
        for method in (REFERENCE, BASELINE, OURS):
            line = results.line("uniform", method, variant)
            cells = results.at_rounds(line, results.scale.checked)
            rows.append([title, TITLES[method], *cells, results.seeds(line), results.rounds_run(line)])
    columns = ("local training", "method", *(f"round {at:,}" for at in results.scale.checked), "seeds", "rounds")
    parts: list[Part] = [PROSE("recipes"), Table(columns, rows)]
    if not any(results.line("uniform", method, "printed") for method in (REFERENCE, BASELINE, OURS)):
        parts.append(results.missing("The recipe as printed", "printed"))
    return parts


def poisoners(results: FedACSResults) -> list[Part]:
    """Accuracy with clients whose labels are all wrong, and how often these are invited."""
    rows = []
    for method in (BASELINE, OURS, RIVAL):
        line = results.line("uniform", method, POISONED)
        base = results.line("uniform", BASELINE, POISONED)
        invited = poisoned_invitations(line)
        cells = results.compared(line, base)
        rows.append(
            [TITLES[method], *cells[:2], "-" if invited is None else spread(invited, "{:.2f}", 1.0), *cells[2:]]
        )
    columns = (
        "method",
        "terminal accuracy",
        "points against random",
        "invitations of a wrong client",
        "seeds",
        "rounds",
    )
    parts: list[Part] = [PROSE("poisoners", share=results.scale.poisoned), Table(columns, rows)]
    if not any(results.line("uniform", method, POISONED) for method in (BASELINE, OURS, RIVAL)):
        parts.append(results.missing("Clients with wrong labels", "poisoners"))
    return parts


def when_not(results: FedACSResults) -> list[Part]:
    """Where FedACS does harm: cluster skew."""
    ours, base = (results.line(CLUSTERED, method) for method in (OURS, BASELINE))
    parts: list[Part] = [PROSE("when-not", scale=results.scale)]
    if not ours or not base:
        return [*parts, results.missing("Cluster skew", "clusters")]
    rows = []
    for method, line in ((BASELINE, base), (OURS, ours)):
        invited = Estimate.of([minority_share(run) for run in line.values()])
        difference = "-" if method == BASELINE else results.difference(line, base)
        cells = [results.spread(results.estimate(line)), difference, spread(invited, "{:.0f}")]
        rows.append([TITLES[method], *cells, str(len(line))])
    columns = (
        "method",
        "terminal accuracy",
        "points against random",
        "invitations outside the main group (%)",
        "seeds",
    )
    return [*parts, Table(columns, rows)]
