"""NCCB's page, from stored runs: its sections in order, and figures 3 to 5, accuracy over values of a setting."""

from collections.abc import Callable

from papers.lines import ACCURACY
from papers.lines_page import page_of_lines
from papers.nccb import BASELINE, BITS, METHODS, OURS, NCCBScale
from papers.nccb_lines import NCCBLines
from papers.nccb_tables import coverage, rates, stop_words, table_1, table_2
from papers.nccb_words import in_words, opening, what_holds
from papers.pages import Chart, Page, Part, Table
from papers.plan import Paper
from papers.store import Store


def page_of(paper: Paper, scale: NCCBScale, store: Store) -> Page:
    """The page of one scale."""
    title = "NCCB, a trial of the machinery" if scale.local_only else "NCCB, reproduced on other data"
    before = (opening, in_words, what_holds)
    return page_of_lines(paper, scale, store, METHODS, NCCBLines, title=title, opening=before, sections=_SECTIONS)


def _figure_3(about: NCCBLines) -> list[Part]:
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


def _figure_4(about: NCCBLines) -> list[Part]:
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


def _figure_5(about: NCCBLines) -> list[Part]:
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
    about: NCCBLines, name: str, what: str, variants: dict[float, str], words: str, *, whole: bool = False
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


_SECTIONS: dict[str, Callable[[NCCBLines], list[Part]]] = {
    "Table 1: terminal accuracy": table_1,
    "Table 2: rounds to random selection's best": table_2,
    "Whom methods invite": coverage,
    "Figure 3: exploring threshold": _figure_3,
    "Figure 4: number of clients": _figure_4,
    "Figure 5: bits of a context": _figure_5,
    "The rate": rates,
    "Stop words": stop_words,
}
