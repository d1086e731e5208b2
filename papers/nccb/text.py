"""Opening of NCCB's page: the result on each corpus, the paper's claims, and how the page was made."""

from covey.job.comparison.statistics import common_seeds
from papers.nccb.corpora import Corpus, PrintedCorpus
from papers.nccb.results import NCCBResults, rounds_saved, rounds_to_best
from papers.nccb.scales import BASELINE, BITS, OURS, TITLES
from papers.page import Part, Table
from papers.prose import SHARED, Prose
from papers.sentences import common_rounds, ends, from_random, gains_by_place, made_by, terminal_means, verdict
from papers.wording import MISSING, bullets, cell, counted, every_text, joined

PROSE = Prose.beside(__file__)


def opening(results: NCCBResults) -> list[Part]:
    """Return the answer, the result on each corpus, the paper's claims, and the setup."""
    corpora = results.scale.corpora
    gains = gains_by_place(results, OURS, BASELINE, {one.title: one.name for one in corpora})
    better = verdict("NCCB", "random selection", gains, "on {}")
    sentences = [sentence for corpus in corpora if (sentence := _gain(results, corpus))]
    return [
        *([PROSE("answer", better=better)] if better else []),
        *bullets(sentences),
        *_other_data(results),
        *_claims(results),
        *PROSE.parts("paper"),
        *_setup(results),
    ]


def _gain(results: NCCBResults, corpus: Corpus) -> str:
    """Say how NCCB does against random selection."""
    ours, base = (results.line(corpus.name, method) for method in (OURS, BASELINE))
    gain = results.gain(ours, base)
    if gain is None:
        return ""
    paper = "" if corpus.printed is None else f"{_printed_gain(corpus.printed, BASELINE)} on {corpus.printed.name}"
    return PROSE(
        "gain",
        corpus=corpus.title,
        ends=ends(common_rounds(ours, base), results.scale.rounds),
        distance=from_random(results, gain, len(common_seeds(ours, base)), paper),
    )


def _other_data(results: NCCBResults) -> list[str]:
    which = [f"{one.about} for {one.printed.name}" for one in results.scale.corpora if one.printed]
    return PROSE.parts("other-data", stand_ins=PROSE("stand-ins", which=joined(which)) + " " if which else "")


def _printed_gain(printed: PrintedCorpus, method: str) -> str:
    """Return the points that NCCB is above another method in the paper."""
    return f"{printed.accuracy[OURS] - printed.accuracy[method]:+.2f}"


def _claims(results: NCCBResults) -> list[Part]:
    """Table of the paper's claims beside our figures."""
    corpora = results.scale.corpora
    printed = [corpus.printed for corpus in corpora if corpus.printed]
    rows = []
    for method in (BASELINE, "k-linucb", "oort-simple"):
        theirs = [_printed_gain(one, method) for one in printed]
        ours = [text for corpus in corpora for text in _claim_cells(results, corpus, method)]
        rows.append([f"NCCB above {TITLES[method]}, points", *theirs, *ours])
    theirs = [f"{one.saved[OURS]:.0f}" for one in printed]
    saved = [text for corpus in corpora for text in _rounds_cells(results, corpus)]
    rows.append(["rounds saved, %", *theirs, *saved])
    columns = (
        "claim",
        *(f"paper, {one.name}" for one in printed),
        *(name for corpus in corpora for name in (corpus.title, f"holds on {corpus.title}")),
    )
    return [*PROSE.parts("claims"), Table(columns, rows)]


def _claim_cells(results: NCCBResults, corpus: Corpus, method: str) -> list[str]:
    """Cells: NCCB's difference to another method, and if it supports the claim."""
    gain = results.gain(results.line(corpus.name, OURS), results.line(corpus.name, method))
    if gain is None:
        return [MISSING, "-"]
    answers = {None: "one seed", False: "within the noise", True: "yes" if gain.mean > 0 else "no"}
    return [results.points(gain), answers[gain.clear_of_zero]]


def _rounds_cells(results: NCCBResults, corpus: Corpus) -> list[str]:
    """Cells: rounds saved in percent, and the seeds with which NCCB takes fewer rounds."""
    pairs = rounds_to_best(results.line(corpus.name, OURS), results.line(corpus.name, BASELINE))
    if not pairs:
        return [MISSING, "-"]
    fewer = sum(own is not None and own < before for own, before in pairs)
    return [cell(rounds_saved(pairs), "{:.0f}"), f"{fewer} of {counted(len(pairs), 'seed')}"]


def _setup(results: NCCBResults) -> list[Part]:
    scale = results.scale
    return [
        "## Setup",
        *PROSE.parts(
            "setup",
            made_by=made_by(results.command, scale, results.store),
            clients=joined([f"{one.clients} clients ({one.title})" for one in scale.corpora]),
            samples=scale.corpora[0].dataset["samples"],
            scale=scale,
            local=scale.local,
            epochs=counted(int(scale.local["epochs"]), "epoch"),
            every=every_text(scale.evaluate_every),
            bits=BITS,
            terminal=terminal_means(results.window),
            which_seeds=SHARED("which-seeds"),
            no_intervals=SHARED("no-intervals"),
        ),
    ]
