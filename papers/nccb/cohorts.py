"""Whom NCCB invites: how widely invitations are spread, how cohorts compare with the best ones, and what that wins."""

from collections.abc import Iterator

from covey.job.comparison.statistics import Estimate
from papers.curves import Line, numbers
from papers.nccb.results import NCCBResults
from papers.nccb.scales import BASELINE, LINEAR, METHODS, OURS, REFERENCE, REGRET, TITLES
from papers.nccb.text import PROSE
from papers.page import Part, Table
from papers.wording import MISSING, joined, spread

VARIANTS = {
    (OURS, "shared"): "NCCB, one shared Z",
    (OURS, "authors"): "NCCB, the authors' values",
    (LINEAR, "shared"): "k-LinUCB, one shared model",
}
"""Method and variant → name in tables."""


def coverage(results: NCCBResults) -> list[Part]:
    """Number of clients that each method invites."""
    rows = []
    for corpus in results.scale.corpora:
        base = results.line(corpus.name, BASELINE)
        for title, line in _with_variants(results, corpus.name):
            if line:
                hits = [numbers(result.hits) for result in line.values()]
                invited = Estimate.of([float((one > 0).sum()) for one in hits])
                evenly = Estimate.of([float(one.sum() ** 2 / (one**2).sum()) for one in hits])
                counts = [spread(figure, "{:.0f}", 1.0) for figure in (invited, evenly)]
                rows.append([corpus.title, title, str(corpus.clients), *counts, *results.compared(line, base)])
    counted_as = ("invited at least once", "as if evenly among")
    compared = ("terminal accuracy", "points against random", "seeds", "rounds")
    columns = ("data", "method", "clients", *counted_as, *compared)
    parts: list[Part] = [
        *PROSE.parts("coverage"),
        Table(columns, rows) if rows else results.missing("Table 1", "table-1"),
    ]
    for variant, what in (("shared", "One confidence for all clients"), ("authors", "The authors' values")):
        if not all(results.line(corpus.name, OURS, variant) for corpus in results.scale.corpora):
            parts.append(results.missing(what, variant))
    return parts


def _with_variants(results: NCCBResults, environment: str) -> Iterator[tuple[str, Line]]:
    """Yield titles and lines of the methods, each followed by its variants."""
    for method in results.shown(environment, METHODS):
        yield results.title(method), results.line(environment, method)
        for (name, variant), title in VARIANTS.items():
            if name == method:
                yield title, results.line(environment, name, variant)


def regret(results: NCCBResults) -> list[Part]:
    """Cumulative regret, and the loss of cohorts over that of all clients."""
    rows, missing = [], False
    for corpus in results.scale.corpora:
        base = results.line(corpus.name, BASELINE, REGRET)
        for method in (BASELINE, OURS, LINEAR):
            for variant, title in ((REGRET, TITLES[method]), (f"shared-{REGRET}", VARIANTS.get((method, "shared")))):
                line = results.line(corpus.name, method, variant)
                if title is not None:
                    missing |= not line
                    rows.append([corpus.title, title, *regret_cells(results, line, base), results.seeds(line)])
    columns = ("data", "method", "cohort's loss over all clients'", "regret over random's", "seeds")
    asked = [results.missing("Regret", "regret")] if missing else []
    return [*PROSE.parts("regret"), Table(columns, rows), *asked]


def regret_cells(results: NCCBResults, line: Line, base: Line) -> list[str]:
    """Cells: the loss of cohorts over that of all clients, and the regret over that of random selection."""
    if not line:
        return [MISSING, "-"]
    ratio, share = results.loss_ratio(line), results.regret(line, base)
    return ["-" if one is None else spread(one, "{:.2f}", 1.0) for one in (ratio, share)]


def something_to_win(results: NCCBResults) -> list[Part]:
    """Terminal accuracy and regret on federations of clients that differ much."""
    rows = []
    missing: dict[str, str] = {}
    shown = [(BASELINE, ""), (OURS, ""), (OURS, "shared"), ("oort-simple", ""), ("oort", ""), (REFERENCE, "")]
    for one in results.scale.uneven:
        base = results.line(one.name, BASELINE)
        for method, variant in shown:
            line = results.line(one.name, method, variant)
            missing |= {} if line else {one.title: one.name}
            title = VARIANTS.get((method, variant), TITLES[method])
            accuracy, *more = results.compared(line, line if method == BASELINE else base)
            rows.append([one.title, title, accuracy, more[0], *regret_cells(results, line, base), *more[1:]])
    columns = (
        "data",
        "method",
        "terminal accuracy",
        "points against random",
        "cohort's loss over all clients'",
        "regret over random's",
        "seeds",
        "rounds",
    )
    about = "; ".join(f"{one.title}: {one.about}, {one.rounds} rounds" for one in results.scale.uneven)
    which = f"something-to-win --environments {','.join(missing.values())}"
    asked = [results.missing(joined(list(missing)), which)] if missing else []
    first = results.scale.uneven[0]
    return [*PROSE.parts("something-to-win", about=about, first=first), Table(columns, rows), *asked]
