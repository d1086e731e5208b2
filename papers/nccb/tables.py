"""NCCB's tables, the paper's numbers (on other data) beside ours, and the effect of our choices."""

from collections.abc import Iterator

from covey.job.comparison.statistics import Estimate, common_seeds
from papers.curves import Line
from papers.nccb.corpora import Corpus
from papers.nccb.results import NCCBResults, rounds_saved, rounds_to_best
from papers.nccb.scales import BASELINE, CORE, HASHED, LINEAR, METHODS, OTHER_WAY, OURS, REFERENCE, TITLES
from papers.nccb.text import PROSE
from papers.page import Part, Table
from papers.wording import MISSING, cell, spread


def table_1(results: NCCBResults) -> list[Part]:
    """Terminal accuracy, and improvement over random selection."""
    columns = (
        "data",
        "method",
        "paper, other data",
        "ours",
        "median",
        "points against random",
        "test loss against random",
        "improvement, paper (%)",
        "ours (%)",
        "seeds",
        "rounds",
    )
    rows = []
    for corpus, method, line, base in _lines(results):
        printed = corpus.printed
        paper = "-" if printed is None else cell(printed.accuracy.get(method), "{:.2f}")
        theirs = "-" if printed is None else cell(printed.improvement.get(method), "{:+.1f}")
        if not line:
            rows.append([corpus.title, results.title(method), paper, MISSING, "-", "-", "-", theirs, "-", "0", "0"])
            continue
        rows.append(
            [
                corpus.title,
                results.title(method),
                paper,
                results.terminal(line),
                f"{100 * results.estimate(line).median:.2f}",
                "-" if method == BASELINE else results.difference(line, base),
                "-" if method == BASELINE else results.loss_difference(line, base),
                theirs,
                "-" if method == BASELINE else cell(results.improvement(line, base), "{:+.1f}"),
                results.seeds(line),
                results.rounds_run(line),
            ]
        )
    return [
        Table(columns, rows),
        PROSE("table-1"),
        *[
            part
            for corpus in results.scale.corpora
            for part in results.curves(
                f"curves-{corpus.name}",
                f"Top-1 accuracy, {corpus.title}",
                {results.title(m): results.line(corpus.name, m) for m in results.shown(corpus.name, METHODS)},
                results.missing(f"Learning curves, {corpus.title}", f"table-1 --environments {corpus.name}"),
            )
        ],
    ]


def _lines(results: NCCBResults) -> Iterator[tuple[Corpus, str, Line, Line]]:
    """Yield corpus, method, its line and that of random selection, in the order of the tables."""
    for corpus in results.scale.corpora:
        base = results.line(corpus.name, BASELINE)
        for method in results.shown(corpus.name, METHODS):
            yield corpus, method, results.line(corpus.name, method), base


def table_2(results: NCCBResults) -> list[Part]:
    """Rounds to the best accuracy of random selection."""
    columns = (
        "data",
        "method",
        "paper, other data: rounds",
        "ours: rounds",
        "median",
        "rounds saved, paper (%)",
        "ours (%)",
        "seeds",
    )
    rows = []
    for corpus, method, line, base in _lines(results):
        printed = corpus.printed
        rows.append(
            [
                corpus.title,
                results.title(method),
                "-" if printed is None else cell(printed.rounds.get(method), "{:.0f}"),
                *_to_best_of(results, line, base),
                "-" if printed is None else cell(printed.saved.get(method), "{:.1f}"),
                "-" if method == BASELINE else cell(rounds_saved(rounds_to_best(line, base)), "{:.1f}"),
                str(len(common_seeds(line, base))),
            ]
        )
    return [
        PROSE("table-2"),
        Table(columns, rows),
    ]


def _to_best_of(results: NCCBResults, line: Line, base: Line) -> list[str]:
    """Cells: mean and median of rounds to the best accuracy of `base`, or how many seeds have reached it."""
    pairs = rounds_to_best(line, base)
    taken = [float(own) for own, _ in pairs if own is not None]
    if not pairs:
        return [MISSING, "-"]
    if len(taken) < len(pairs):
        found = f"{len(taken)} of {len(pairs)} seeds" if taken else "not reached"
        return [found + (results.so_far(line) or results.so_far(base)), "-"]
    estimate = Estimate.of(taken)
    return [spread(estimate, "{:.0f}", 1.0), f"{estimate.median:.0f}"]


def rates(results: NCCBResults) -> list[Part]:
    """Accuracy of random selection at other rates."""
    corpus, chosen = results.scale.corpora[0], float(results.scale.local["rate"])
    rows = []
    for rate in sorted((*results.scale.rates, chosen)):
        line = results.line(corpus.name, BASELINE, "" if rate == chosen else f"rate{rate:g}")
        cells = results.at_rounds(line, results.scale.checked)
        rows.append([f"{rate:g}" + (" (chosen)" if rate == chosen else ""), *cells, results.seeds(line)])
    absent = not all(results.line(corpus.name, BASELINE, f"rate{rate:g}") for rate in results.scale.rates)
    columns = ("rate", *(f"round {at:,}" for at in results.scale.checked), "seeds")
    return [
        PROSE("rates", corpus=corpus.title, chosen=chosen),
        Table(columns, rows),
        *([results.missing("Other rates", "rate")] if absent else []),
    ]


def adam(results: NCCBResults) -> list[Part]:
    """Accuracy with the paper's local training and layers."""
    rows, missing = [], False
    for corpus in results.scale.corpora:
        base = results.line(corpus.name, BASELINE, "adam")
        for method in (*CORE, LINEAR):
            line = results.line(corpus.name, method, "adam")
            missing |= not line
            rows.append([corpus.title, str(corpus.layers), TITLES[method], *results.compared(line, base)])
    columns = ("data", "layers", "method", "terminal accuracy", "points against random", "seeds", "rounds")
    asked = [results.missing("Adam", "adam")] if missing else []
    return [PROSE("adam"), Table(columns, rows), *asked]


def stop_words(results: NCCBResults) -> list[Part]:
    """Accuracy with stop words left out of the hash, hashed, and removed from the data."""
    corpus = results.scale.corpora[0]
    rows = []
    for data, hashed, variant, methods in (
        ("kept", "no", "", (*CORE, REFERENCE)),
        ("kept", "yes", HASHED, (OURS,)),
        ("removed", "no", OTHER_WAY, (*CORE, REFERENCE)),
    ):
        base = results.line(corpus.name, BASELINE, "" if variant == HASHED else variant)
        for method in methods:
            line = results.line(corpus.name, method, variant)
            compared = results.compared(line, base if method != BASELINE else line)
            rows.append([data, hashed, TITLES[method], *compared])
    columns = ("in the data", "in the hash", "method", "terminal accuracy", "points against random", "seeds", "rounds")
    parts: list[Part] = [PROSE("stop-words", corpus=corpus.title), Table(columns, rows)]
    if not all(results.line(corpus.name, OURS, variant) for variant in (HASHED, OTHER_WAY)):
        parts.append(results.missing("Stop words hashed, or removed", "stop-words"))
    return parts
