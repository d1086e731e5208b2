"""NCCB's tables and figures from stored runs, the paper's numbers (on other data) beside ours."""

from collections.abc import Callable, Sequence

import numpy as np

from covey.comparison import Estimate
from covey.experiments.lines import ACCURACY, Lines
from covey.experiments.nccb import (
    BASELINE,
    BITS,
    CORE,
    METHODS,
    OTHER_WAY,
    OURS,
    OWN,
    REFERENCE,
    TITLES,
    Corpus,
    NCCBScale,
)
from covey.experiments.pages import (
    MISSING,
    Chart,
    Page,
    Part,
    Table,
    assembled,
    cell,
    clearness,
    command_of,
    counted,
    every_text,
    joined,
    methods_in,
    runs_table,
    spread,
    usable,
)
from covey.experiments.plan import Paper
from covey.experiments.statistics import (
    Line,
    apart,
    common_seeds,
    numbers,
    paired_terminal,
    reached,
    rounds_to,
    terminal,
)
from covey.experiments.store import Store

_OWN_TITLE = "NCCB, a confidence for each client"


def page_of(paper: Paper, scale: NCCBScale, store: Store) -> Page:
    """The page of one scale."""
    present = methods_in(store, METHODS)
    kept, notes = usable(paper, scale, store, present)
    about = _About(scale, kept, command_of(paper, scale), present)
    title = "NCCB, a trial of the machinery" if scale.local_only else "NCCB, reproduced on other data"
    opening = [*_opening(about), *_in_words(about), *_what_holds(about)]
    runs = runs_table(kept, lambda *place: scale.rounds)
    return assembled(scale, title, about, opening, _SECTIONS, runs, notes)


class _About(Lines):
    """What every section needs to know."""

    def __init__(self, scale: NCCBScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale


def _opening(about: _About) -> list[Part]:
    scale, local = about.scale, about.scale.local
    standing = [f"{one.about} for {one.printed.name}" for one in scale.corpora if one.printed]
    clients = joined([f"{one.clients} clients ({one.title})" for one in scale.corpora])
    first = scale.corpora[0].dataset
    return [
        'Cao, Pan, Zhu and Liu, "Birds of a Feather Help: Context-aware Client Selection for Efficient Federated '
        'Learning", AAAI workshop 2022: its tables and figures beside what Covey measures.',
        "**These are not the paper's data.** "
        + (
            f"Super User and Yelp were not at hand, and others stand in for them: {joined(standing)}. "
            if standing
            else ""
        )
        + "These are of the same kind, texts by their users, and not of the same size, vocabulary or difficulty. So "
        "accuracies and rounds are not comparable with the paper's; whether selection helps, and which kind, is.",
        f"Made by `{about.command} --only tables` from the {len(about.store)} runs in `{scale.store}` of the results "
        f"folder, and from nothing else. Settings: {clients} of {first['samples']} samples, others held back for "
        f"testing; an LSTM of {scale.model['layers']} x {scale.model['hidden']} units that predicts the next word; "
        f"{scale.cohort} clients a round, {counted(int(local['epochs']), 'epoch')} in batches of {local['batch']}, "
        f"SGD at a rate of {local['rate']:g} that falls by {local['decay']:g} with every local epoch, "
        f"{scale.rounds:,} rounds, an evaluation {every_text(scale.evaluate_every)}. NCCB has {BITS} bits, "
        f"{scale.clusters} clusters and a threshold of {scale.threshold}. Stop words are kept; the paper removes them "
        "(see Stop words below).",
        "Accuracy is top-1, in percent, words outside the vocabulary counted as wrong. Terminal accuracy is the mean "
        f"over the last {counted(about.window, 'round')}. ± is half of Student's 95 % interval over seeds; differences "
        "are taken seed by seed, at the last round that both runs have come to. Where two or more seeds are at their "
        "end, figures are over these alone, and others are counted as under way; a figure of runs that are still under "
        'way is marked "so far". The paper gives neither seeds nor intervals.',
    ]


def _in_words(about: _About) -> list[Part]:
    """The result on each corpus in a sentence."""
    said = []
    for corpus in about.scale.corpora:
        base = about.line(corpus.name, BASELINE)
        pair = paired_terminal(about.line(corpus.name, OURS), base, about.window)
        if pair is None:
            continue
        difference = pair.difference
        sentence = (
            f"{corpus.title}: NCCB ends {about.points(difference)} points from random selection "
            f"({clearness(difference)}; {counted(len(pair.seeds), 'seed')}"
        )
        if corpus.printed is not None:
            theirs = corpus.printed.accuracy[OURS] - corpus.printed.accuracy[BASELINE]
            sentence += f"; in the paper {theirs:+.2f} on {corpus.printed.name}"
        said.append(f"- {sentence}).")
    return ["\n".join(said)] if said else []


def _what_holds(about: _About) -> list[Part]:
    """The paper's claims, each beside what it comes to on our texts."""
    rows = []
    for method in (BASELINE, "k-linucb", "oort-simple"):
        paper = [
            f"{one.printed.accuracy[OURS] - one.printed.accuracy[method]:+.2f} ({one.printed.name})"
            for one in about.scale.corpora
            if one.printed
        ]
        ours = [_verdict(about, corpus, method) for corpus in about.scale.corpora]
        rows.append([f"NCCB ends above {TITLES[method]}, in points", ", ".join(paper) or "-", *ours])
    paper = [f"{one.printed.saved[OURS]:.0f} % ({one.printed.name})" for one in about.scale.corpora if one.printed]
    saved = [_rounds_verdict(about, corpus) for corpus in about.scale.corpora]
    rows.append(["rounds that NCCB saves to random's best", ", ".join(paper) or "-", *saved])
    columns = ("claim", "paper, other data", *(corpus.title for corpus in about.scale.corpora))
    return ["What holds of the paper's claims on these texts:", Table(columns, rows)]


def _verdict(about: _About, corpus: Corpus, method: str) -> str:
    """NCCB's difference to another method, and whether it bears the claim out."""
    pair = paired_terminal(about.line(corpus.name, OURS), about.line(corpus.name, method), about.window)
    if pair is None:
        return MISSING
    difference = pair.difference
    clear = apart(difference)
    said = "one seed" if clear is None else "within the noise" if not clear else "holds"
    if clear and difference.mean < 0:
        said = "does not hold"
    return f"{about.points(difference)}: {said}"


def _rounds_verdict(about: _About, corpus: Corpus) -> str:
    pairs = _pairs(about.line(corpus.name, OURS), about.line(corpus.name, BASELINE))
    if not pairs:
        return MISSING
    fewer = sum(own is not None and own < before for own, before in pairs)
    saved = _saved(about.line(corpus.name, OURS), about.line(corpus.name, BASELINE))
    share = f"{float(saved):.0f} %, " if saved != "-" else ""
    return f"{share}fewer with {fewer} of {counted(len(pairs), 'seed')}"


def _table_1(about: _About) -> list[Part]:
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
    for corpus in about.scale.corpora:
        base = about.line(corpus.name, BASELINE)
        for method in about.shown(corpus.name, METHODS):
            line = about.line(corpus.name, method)
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
                    about.difference(line, base) if method != BASELINE else "-",
                    theirs,
                    "-" if method == BASELINE else cell(_improvement(about, line, base), "{:+.1f}"),
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


def _improvement(about: _About, line: Line, base: Line) -> float | None:
    """Terminal accuracy above that of `base` as a share of it, in percent: a ratio of means over common seeds."""
    seeds = common_seeds(line, base)
    if not seeds:
        return None
    own, other = [], []
    for seed in seeds:
        at = min(reached(line[seed]), reached(base[seed]))
        own.append(terminal(line[seed], about.window, at))
        other.append(terminal(base[seed], about.window, at))
    return 100 * (float(np.mean(own)) / float(np.mean(other)) - 1) if np.mean(other) > 0 else None


def _table_2(about: _About) -> list[Part]:
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
    for corpus in about.scale.corpora:
        base = about.line(corpus.name, BASELINE)
        for method in about.shown(corpus.name, METHODS):
            printed = corpus.printed
            line = about.line(corpus.name, method)
            rows.append(
                [
                    corpus.title,
                    about.title(method),
                    "-" if printed is None else cell(printed.rounds.get(method), "{:.0f}"),
                    *_to_best_of(line, base),
                    "-" if printed is None else cell(printed.saved.get(method), "{:.1f}"),
                    "-" if method == BASELINE else _saved(line, base),
                    str(len(common_seeds(line, base))),
                ]
            )
    return [
        "Rounds to the best accuracy that random selection comes to with the same seed, counted to the first "
        "evaluation that reaches it, and averaged where all seeds reach it.",
        Table(columns, rows),
    ]


def _pairs(line: Line, base: Line) -> list[tuple[int | None, int]]:
    """Rounds of a line and of random selection to the latter's best accuracy, seed by seed."""
    found = []
    for seed in common_seeds(line, base):
        best = float(base[seed].accuracy.max())
        before = rounds_to(base[seed], best)
        assert before is not None
        found.append((rounds_to(line[seed], best), before))
    return found


def _to_best_of(line: Line, base: Line) -> list[str]:
    """Mean and median."""
    pairs = _pairs(line, base)
    there = [float(own) for own, _ in pairs if own is not None]
    if not pairs:
        return [MISSING, "-"]
    if len(there) < len(pairs):
        return [f"{len(there)} of {len(pairs)} seeds" if there else "not reached", "-"]
    estimate = Estimate.of(there)
    return [spread(estimate, "{:.0f}", 1.0), f"{estimate.median:.0f}"]


def _saved(line: Line, base: Line) -> str:
    """Rounds saved as a share of random selection's, a ratio of means; where all seeds come so far."""
    pairs = _pairs(line, base)
    there = [(own, before) for own, before in pairs if own is not None]
    if not there or len(there) < len(pairs):
        return "-"
    own, before = (float(np.mean(column)) for column in zip(*there, strict=True))
    return f"{100 * (1 - own / before):.1f}"


def _rate(about: _About) -> list[Part]:
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


def _stop_words(about: _About) -> list[Part]:
    corpus = about.scale.corpora[0]
    rows = []
    for title, variant in (("kept", ""), ("removed", OTHER_WAY)):
        base = about.line(corpus.name, BASELINE, variant)
        for method in (*CORE, REFERENCE):
            line = about.line(corpus.name, method, variant)
            rows.append([title, TITLES[method], *about.compared(line, base if method != BASELINE else line)])
    words = (
        "The paper removes stop words, and the tables above keep them: without them so few next words can be told that "
        "methods would differ by less than the test set resolves. What contexts tell is the same: on the tweets, the "
        "fingerprints of two halves of one user's samples differ in 8.1 of 64 bits and those of two users in 10.2; "
        f"without stop words in 21.1 and in 26.7. Both ways on {corpus.title}:"
    )
    parts: list[Part] = [
        words,
        Table(("stop words", "method", "terminal accuracy", "points against random", "seeds", "rounds"), rows),
    ]
    if not about.line(corpus.name, BASELINE, OTHER_WAY):
        parts.append(about.missing("Stop words removed", "stop-words"))
    return parts


def _coverage(about: _About) -> list[Part]:
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


def _figure_3(about: _About) -> list[Part]:
    thresholds = sorted((*about.scale.thresholds, about.scale.threshold))
    return _sweep(
        about,
        "figure-3",
        "exploring threshold k",
        {float(k): "" if k == about.scale.threshold else f"threshold{k}" for k in thresholds},
        "Terminal accuracy of NCCB by k: a cluster is explored k + 1 times before estimates count, at least "
        f"{about.scale.clusters} (k + 1) / {about.scale.cohort} rounds in all. On Yelp the paper finds k = 10 best, "
        "and accuracy lower by 2.1, 2.3 and 10.8 % at k = 5, 20 and 200; on Super User it has k = 0, 20, 100 and 200 "
        "and gives the curves alone.",
    )


def _figure_4(about: _About) -> list[Part]:
    counts = sorted({count for corpus in about.scale.corpora for count in corpus.fewer_clients})
    return _sweep(
        about,
        "figure-4",
        "clients",
        {float(count): f"clients{count}" for count in counts},
        "Terminal accuracy of NCCB by the number of clients, the first of the corpus; test users and vocabulary are "
        "those of the whole. The paper shows that it rises with their number, and that with fewer clients NCCB ends "
        "above random selection with all of them; only the curves are given.",
        whole=True,
    )


def _figure_5(about: _About) -> list[Part]:
    lengths = sorted((*about.scale.bits, BITS))
    return _sweep(
        about,
        "figure-5",
        "bits",
        {float(bits): "" if bits == BITS else f"bits{bits}" for bits in lengths},
        "Terminal accuracy of NCCB by the length of a context. On Super User the paper finds it lower by 3.4, 5.5 and "
        "12.2 % at 32, 16 and 8 bits than at 64.",
    )


def _sweep(
    about: _About, name: str, what: str, variants: dict[float, str], words: str, *, whole: bool = False
) -> list[Part]:
    """A figure over values of one setting, on every corpus; all values over the seeds that all of them have.

    `whole` adds the run of the tables at the corpus's own number of clients.
    """
    parts: list[Part] = [words]
    missing = False
    for corpus in about.scale.corpora:
        values = {**variants, **({float(corpus.clients): ""} if whole else {})}
        lines, base = about.over_values(corpus.name, OURS, dict(sorted(values.items())), BASELINE)
        rows = [[corpus.title, f"{value:g}", *about.compared(line, base)] for value, line in lines.items()]
        parts.append(Table(("data", what, "ours", "points against random", "seeds", "rounds"), rows))
        series = about.by_value(lines, OURS, base, BASELINE)
        if not series:
            missing = True
            continue
        title = f"Fig. {name[-1]}: {corpus.title}, terminal accuracy by {what}"
        parts.append(Chart(f"{name}-{corpus.name}", title, what, ACCURACY, series, "both"))
    return [*parts, about.missing(f"Figure {name[-1]}", name)] if missing else parts


_SECTIONS: dict[str, Callable[[_About], list[Part]]] = {
    "Table 1: terminal accuracy": _table_1,
    "Table 2: rounds to random selection's best": _table_2,
    "Whom methods invite": _coverage,
    "Figure 3: exploring threshold": _figure_3,
    "Figure 4: number of clients": _figure_4,
    "Figure 5: bits of a context": _figure_5,
    "The rate": _rate,
    "Stop words": _stop_words,
}
