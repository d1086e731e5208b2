"""Opening of NCCB's page: the answer, a verdict on each of the paper's claims, and how the page was made."""

from collections.abc import Sequence

from covey.job.comparison.statistics import Estimate, common_seeds
from papers.nccb.corpora import Corpus, PrintedCorpus
from papers.nccb.results import NCCBResults, rounds_saved, rounds_to_best
from papers.nccb.scales import BASELINE, BITS, LINEAR, OURS, REGRET, TITLES
from papers.page import Part, Table
from papers.prose import SHARED, Prose
from papers.sentences import common_rounds, ends, from_random, gains_by_place, made_by, terminal_means, verdict
from papers.wording import MISSING, bullets, cell, counted, every_text, joined, spread

PROSE = Prose.beside(__file__)


def opening(results: NCCBResults) -> list[Part]:
    """Return the answer, the verdicts, the result on each corpus, and the setup."""
    corpora = results.scale.corpora
    gains = gains_by_place(results, OURS, BASELINE, {one.title: one.name for one in corpora})
    better = verdict("NCCB", "random selection", gains, "on {}")
    places = [(one.name, one.title, _printed_on(one)) for one in corpora]
    places += [(one.name, one.title, "") for one in results.scale.uneven]
    sentences = [sentence for place in places if (sentence := _gain(results, *place))]
    sentences += [sentence for corpus in corpora if (sentence := _lower_loss(results, corpus))]
    return [
        *([PROSE("answer", better=better)] if better else []),
        *_claims(results),
        *bullets(sentences),
        *_other_data(results),
        *PROSE.parts("paper"),
        *_setup(results),
    ]


def deviations(results: NCCBResults) -> list[Part]:
    """Return what differs from the paper."""
    return list(PROSE.parts("deviations", scale=results.scale, local=results.scale.local))


def _gain(results: NCCBResults, place: str, title: str, paper: str) -> str:
    """Say how NCCB does against random selection; `paper` is the paper's figure."""
    ours, base = (results.line(place, method) for method in (OURS, BASELINE))
    gain = results.gain(ours, base)
    if gain is None:
        return ""
    return PROSE(
        "gain",
        corpus=title,
        ends=ends(common_rounds(ours, base), results.planned_rounds(place, OURS)),
        distance=from_random(results, gain, len(common_seeds(ours, base)), paper),
    )


def _printed_on(corpus: Corpus) -> str:
    return "" if corpus.printed is None else f"{_printed_gain(corpus.printed, BASELINE)} on {corpus.printed.name}"


def _lower_loss(results: NCCBResults, corpus: Corpus) -> str:
    """Say that Oort ends with a lower test loss than random selection, if it clearly does."""
    lines = (results.line(corpus.name, method) for method in ("oort-simple", BASELINE))
    lower = results.loss_gain(*lines)
    if lower is None or not lower.clear_of_zero or lower.mean > 0:
        return ""
    return PROSE("lower-loss", corpus=corpus.title, difference=spread(lower, "{:+.3f}", 1.0))


def _other_data(results: NCCBResults) -> list[str]:
    which = [f"{one.about} for {one.printed.name}" for one in results.scale.corpora if one.printed]
    return PROSE.parts("other-data", stand_ins=PROSE("stand-ins", which=joined(which)) + " " if which else "")


def _printed_gain(printed: PrintedCorpus, method: str) -> str:
    """Return the points that NCCB is above another method in the paper."""
    return f"{printed.accuracy[OURS] - printed.accuracy[method]:+.2f}"


def _claims(results: NCCBResults) -> list[Part]:
    """Table of the paper's claims: the verdict, the paper's figures and ours."""
    scale = results.scale
    corpora = scale.corpora
    printed = [corpus.printed for corpus in corpora if corpus.printed]
    rows = []
    for method in (BASELINE, LINEAR, "oort-simple"):
        theirs = [_printed_gain(one, method) for one in printed]
        rows.append(_compared(results, f"NCCB above {TITLES[method]}, points", theirs, (OURS, ""), (method, "")))
    theirs = [f"{one.saved[OURS]:.0f}" for one in printed]
    found = [_rounds(results, corpus) for corpus in corpora]
    rows.append(["rounds saved, %", _judged([good for good, _ in found]), *theirs, *(text for _, text in found)])
    for claim, variant in (
        (
            f"k = {scale.threshold} above k = {max(scale.thresholds)}, points (Fig. 3)",
            f"threshold{max(scale.thresholds)}",
        ),
        ("all clients above the fewest, points (Fig. 4)", f"clients{min(corpora[0].fewer_clients)}"),
        (f"{BITS} bits above {min(scale.bits)}, points (Fig. 5)", f"bits{min(scale.bits)}"),
    ):
        rows.append(_compared(results, claim, ["-"] * len(printed), (OURS, ""), (OURS, variant)))
    ratios = [results.loss_ratio(results.line(corpus.name, OURS, REGRET)) for corpus in corpora]
    above = [None if one is None else one.mean > 1 for one in ratios]
    cells = [MISSING if one is None else spread(one, "{:.2f}", 1.0) for one in ratios]
    rows.append(["cohort's loss over all clients', above 1 (eqs. 2, 3)", _judged(above), *["-"] * len(printed), *cells])
    columns = ("claim", "verdict", *(f"paper, {one.name}" for one in printed), *(corpus.title for corpus in corpora))
    return [*PROSE.parts("claims"), Table(columns, rows)]


def _compared(
    results: NCCBResults, claim: str, theirs: Sequence[str], better: tuple[str, str], other: tuple[str, str]
) -> list[str]:
    """Return the row of a claim that one line is above another; a line is a method and a variant."""
    gains = [
        results.gain(results.line(corpus.name, *better), results.line(corpus.name, *other))
        for corpus in results.scale.corpora
    ]
    texts = [MISSING if gain is None else results.points(gain) + _doubt(gain) for gain in gains]
    return [claim, _judged([None if gain is None else _supports(gain) for gain in gains]), *theirs, *texts]


def _supports(gain: Estimate) -> bool:
    return gain.mean > 0 and gain.clear_of_zero is not False


def _doubt(gain: Estimate) -> str:
    """Return a mark for a difference that may be noise."""
    return {None: " (one seed)", False: " (noise)", True: ""}[gain.clear_of_zero]


def _judged(support: Sequence[bool | None]) -> str:
    """Return the verdict on a claim: does each corpus support it? None is a corpus without the runs."""
    tested = [one for one in support if one is not None]
    if not tested:
        return "not tested"
    if all(tested) and len(tested) == len(support):
        return "holds"
    return "holds in part" if any(tested) else "does not hold"


def _rounds(results: NCCBResults, corpus: Corpus) -> tuple[bool | None, str]:
    """Return if NCCB takes fewer rounds with every seed, and the cell: rounds saved and seeds with fewer rounds."""
    pairs = rounds_to_best(results.line(corpus.name, OURS), results.line(corpus.name, BASELINE))
    if not pairs:
        return None, MISSING
    fewer = sum(own is not None and own < before for own, before in pairs)
    saved = cell(rounds_saved(pairs), "{:.0f}")
    return fewer == len(pairs), f"{saved} (fewer with {fewer} of {counted(len(pairs), 'seed')})"


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
