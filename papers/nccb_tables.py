"""NCCB's tables, the paper's numbers (on other data) beside ours; whom methods invite; and what our choices cost."""

from collections.abc import Iterator

from covey.job.comparison.statistics import Estimate
from papers.nccb import BASELINE, CORE, METHODS, OTHER_WAY, OURS, OWN, REFERENCE, TITLES, Corpus
from papers.nccb_lines import NCCBLines, improvement, rounds_saved, rounds_to_best
from papers.pages import MISSING, Part, Table, cell, spread
from papers.statistics import Line, common_seeds, numbers

_OWN_TITLE = "NCCB, a confidence for each client"


def table_1(about: NCCBLines) -> list[Part]:
    columns = (
        "data",
        "method",
        "paper, other data",
        "ours",
        "median",
        "points against random",
        "improvement, paper (%)",
        "ours (%)",
        "seeds",
        "rounds",
    )
    rows = []
    for corpus, method, line, base in _lines(about):
        printed = corpus.printed
        paper = "-" if printed is None else cell(printed.accuracy.get(method), "{:.2f}")
        theirs = "-" if printed is None else cell(printed.improvement.get(method), "{:+.1f}")
        if not line:
            rows.append([corpus.title, about.title(method), paper, MISSING, "-", "-", theirs, "-", "0", "0"])
            continue
        rows.append(
            [
                corpus.title,
                about.title(method),
                paper,
                about.terminal(line),
                f"{100 * about.estimate(line).median:.2f}",
                "-" if method == BASELINE else about.difference(line, base),
                theirs,
                "-" if method == BASELINE else cell(improvement(line, base, about.window), "{:+.1f}"),
                about.seeds(line),
                about.rounds_run(line),
            ]
        )
    return [
        Table(columns, rows),
        "Improvement is the difference as a share of random selection's accuracy, a ratio of means over common seeds. "
        'Oort stands twice: as its authors describe it ("original"), and in the short form with which the paper '
        'compares ("as compared"); the paper has one line. It has IID on Yelp alone.',
        *[
            part
            for corpus in about.scale.corpora
            for part in about.curves(
                f"curves-{corpus.name}",
                f"Top-1 accuracy, {corpus.title}",
                {about.title(m): about.line(corpus.name, m) for m in about.shown(corpus.name, METHODS)},
                about.missing(f"Learning curves, {corpus.title}", f"table-1 --environments {corpus.name}"),
            )
        ],
    ]


def _lines(about: NCCBLines) -> Iterator[tuple[Corpus, str, Line, Line]]:
    """Corpus, method, its line and that of random selection, in the order of the tables."""
    for corpus in about.scale.corpora:
        base = about.line(corpus.name, BASELINE)
        for method in about.shown(corpus.name, METHODS):
            yield corpus, method, about.line(corpus.name, method), base


def table_2(about: NCCBLines) -> list[Part]:
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
    for corpus, method, line, base in _lines(about):
        printed = corpus.printed
        rows.append(
            [
                corpus.title,
                about.title(method),
                "-" if printed is None else cell(printed.rounds.get(method), "{:.0f}"),
                *_to_best_of(about, line, base),
                "-" if printed is None else cell(printed.saved.get(method), "{:.1f}"),
                "-" if method == BASELINE else cell(rounds_saved(rounds_to_best(line, base)), "{:.1f}"),
                str(len(common_seeds(line, base))),
            ]
        )
    return [
        "Rounds to the best accuracy that random selection comes to with the same seed, counted to the first "
        "evaluation that reaches it, and averaged where all seeds reach it.",
        Table(columns, rows),
    ]


def _to_best_of(about: NCCBLines, line: Line, base: Line) -> list[str]:
    """Mean and median; whoever is not there yet may come to it while runs are under way."""
    pairs = rounds_to_best(line, base)
    there = [float(own) for own, _ in pairs if own is not None]
    if not pairs:
        return [MISSING, "-"]
    if len(there) < len(pairs):
        found = f"{len(there)} of {len(pairs)} seeds" if there else "not reached"
        return [found + (about.so_far(line) or about.so_far(base)), "-"]
    estimate = Estimate.of(there)
    return [spread(estimate, "{:.0f}", 1.0), f"{estimate.median:.0f}"]


def coverage(about: NCCBLines) -> list[Part]:
    """How widely each method spreads its invitations."""
    rows = []
    for corpus in about.scale.corpora:
        base = about.line(corpus.name, BASELINE)
        lines = {method: about.line(corpus.name, method) for method in about.shown(corpus.name, METHODS)}
        named = [(about.title(method), line if method != BASELINE else base) for method, line in lines.items()]
        named.insert(2, (_OWN_TITLE, about.line(corpus.name, OURS, OWN)))
        for title, line in named:
            if line:
                hits = [numbers(result.hits) for result in line.values()]
                invited = Estimate.of([float((one > 0).sum()) for one in hits])
                evenly = Estimate.of([float(one.sum() ** 2 / (one**2).sum()) for one in hits])
                counts = [spread(figure, "{:.0f}", 1.0) for figure in (invited, evenly)]
                rows.append([corpus.title, title, str(corpus.clients), *counts, *about.compared(line, base)])
    counted_as = ("invited at least once", "as if evenly among")
    columns = (
        "data",
        "method",
        "clients",
        *counted_as,
        "terminal accuracy",
        "points against random",
        "seeds",
        "rounds",
    )
    parts: list[Part] = [
        "A bandit comes back to clients whose reward, the loss of the model on their texts, it expects to be high, and "
        'meanwhile others\' texts are not learned from. "As if evenly among" is (Σ hits)² / Σ hits²: invitations '
        "shared evenly among so many clients would be as concentrated.",
        "In the paper's equation 14 one Z serves all clients, so that a client which has just been invited is about "
        "as uncertain as those that resemble it, and may be invited again at once. The authors' code keeps a Z for "
        f"each client (`selector.covariance=own`): what is known of one is not known of others. {_OWN_TITLE} is that.",
        Table(columns, rows) if rows else about.missing("Table 1", "table-1"),
    ]
    if not all(about.line(corpus.name, OURS, OWN) for corpus in about.scale.corpora):
        parts.append(about.missing(_OWN_TITLE, "confidence"))
    return parts


def rates(about: NCCBLines) -> list[Part]:
    corpus, chosen = about.scale.corpora[0], float(about.scale.local["rate"])
    rows = []
    for rate in sorted((*about.scale.rates, chosen)):
        line = about.line(corpus.name, BASELINE, "" if rate == chosen else f"rate{rate:g}")
        cells = about.at_rounds(line, about.scale.checked)
        rows.append([f"{rate:g}" + (" (chosen)" if rate == chosen else ""), *cells, about.seeds(line)])
    absent = not all(about.line(corpus.name, BASELINE, f"rate{rate:g}") for rate in about.scale.rates)
    columns = ("rate", *(f"round {at:,}" for at in about.scale.checked), "seeds")
    return [
        f"The paper's 0.002 is with Adam, and this is plain SGD. Random selection on {corpus.title} at rates around "
        f"the {chosen:g} of all tables, which was chosen in trials of 20 rounds of random selection alone, so that it "
        "favours no other method.",
        Table(columns, rows),
        *([about.missing("Other rates", "rate")] if absent else []),
    ]


def stop_words(about: NCCBLines) -> list[Part]:
    corpus = about.scale.corpora[0]
    rows = []
    for title, variant in (("kept", ""), ("removed", OTHER_WAY)):
        base = about.line(corpus.name, BASELINE, variant)
        for method in (*CORE, REFERENCE):
            line = about.line(corpus.name, method, variant)
            rows.append([title, TITLES[method], *about.compared(line, base if method != BASELINE else line)])
    words = (
        "The paper removes stop words, and the tables above keep them: without them so few next words can be told that "
        "methods would differ by less than the test set resolves. What contexts tell is the same, by a measurement "
        "apart from these runs: on the tweets, the fingerprints of two halves of one user's samples differ in 8.1 of "
        "64 bits and those of two users in 10.2; without stop words in 21.1 and in 26.7. "
        f"Both ways on {corpus.title}:"
    )
    parts: list[Part] = [
        words,
        Table(("stop words", "method", "terminal accuracy", "points against random", "seeds", "rounds"), rows),
    ]
    if not about.line(corpus.name, BASELINE, OTHER_WAY):
        parts.append(about.missing("Stop words removed", "stop-words"))
    return parts
