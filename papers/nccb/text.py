"""Opening of NCCB's page: the answer, and how the page was made."""

from covey.job.comparison.statistics import common_seeds
from papers.nccb.corpora import Corpus, PrintedCorpus
from papers.nccb.results import NCCBResults
from papers.nccb.scales import BASELINE, BITS, OURS
from papers.page import Part
from papers.prose import SHARED, Prose
from papers.sentences import common_rounds, ends, from_random, gains_by_place, made_by, terminal_means, verdict
from papers.wording import bullets, counted, every_text, joined, spread

PROSE = Prose.beside(__file__)


def opening(results: NCCBResults) -> list[Part]:
    """Return the answer, the result on each corpus, and the setup."""
    corpora = results.scale.corpora
    gains = gains_by_place(results, OURS, BASELINE, {one.title: one.name for one in corpora})
    better = verdict("NCCB", "random selection", gains, "on {}")
    places = [(one.name, one.title, _printed_on(one)) for one in corpora]
    places += [(one.name, one.title, "") for one in results.scale.uneven]
    sentences = [sentence for place in places if (sentence := _gain(results, *place))]
    sentences += [sentence for corpus in corpora if (sentence := _lower_loss(results, corpus))]
    return [
        *([PROSE("answer", better=better)] if better else []),
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
    if corpus.printed is None:
        return ""
    return f"{printed_gain(corpus.printed, BASELINE):+.2f} on {corpus.printed.name}"


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


def printed_gain(printed: PrintedCorpus, method: str) -> float:
    """Return the points that NCCB is above another method in the paper."""
    return printed.accuracy[OURS] - printed.accuracy[method]


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
