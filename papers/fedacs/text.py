"""Opening of FedACS's page: the result in each environment, and how the page was made."""

from covey.job.comparison.statistics import common_seeds
from papers.fedacs.results import FedACSResults
from papers.fedacs.scales import BASELINE, ENVIRONMENTS, OURS, PAPER_IID, REFERENCE, RIVAL, Environment
from papers.grid import ANY
from papers.page import Part
from papers.prose import SHARED, Prose
from papers.sentences import common_rounds, ends, from_random, gains_by_place, made_by, terminal_means, verdict
from papers.wording import bullets, clearness, every_text

PROSE = Prose.beside(__file__)


def opening(results: FedACSResults) -> list[Part]:
    """Return the answer, the result in each environment, and the setup."""
    gains = gains_by_place(results, OURS, BASELINE, {one.title: one.name for one in ENVIRONMENTS})
    better = verdict("FedACS", "random selection", gains, "in the environments {}")
    sentences = [sentence for one in ENVIRONMENTS if (sentence := _gain(results, one))]
    return [
        *([PROSE("answer", better=better)] if better else []),
        *bullets(sentences),
        *PROSE.parts("paper"),
        *_setup(results),
    ]


def _setup(results: FedACSResults) -> list[Part]:
    scale = results.scale
    local = scale.authors
    extra = f"momentum {local['momentum']:g} and weight decay {local['weight_decay']:g}"
    extra += f", random crops after padding by {local['crop']}, random flips" if local.get("crop") else ""
    return [
        "## Setup",
        *PROSE.parts(
            "setup",
            made_by=made_by(results.command, scale, results.store),
            scale=scale,
            local=local,
            every=every_text(scale.evaluate_every),
            extra=extra,
            terminal=terminal_means(results.window),
            which_seeds=SHARED("which-seeds"),
        ),
    ]


def _gain(results: FedACSResults, environment: Environment) -> str:
    """Say how FedACS does against random selection, with IID and the closest rival beside it."""
    ours, base = (results.line(environment.name, method) for method in (OURS, BASELINE))
    gain = results.gain(ours, base)
    if gain is None:
        return ""
    printed = environment.accuracy
    iid = results.gain(results.line(ANY, REFERENCE), base)
    paper_iid = f" (in the paper {PAPER_IID - printed[BASELINE]:+.1f})" if printed else ""
    paper = f"{printed[OURS] - printed[BASELINE]:+.1f}" if printed else ""
    sentence = PROSE(
        "gain",
        environment=environment.title,
        ends=ends(common_rounds(ours, base), results.scale.rounds),
        distance=from_random(results, gain, len(common_seeds(ours, base)), paper),
        iid="" if iid is None else PROSE("gain-iid", gain=results.points(iid), paper=paper_iid),
    )
    return " ".join(filter(None, (sentence, _against_rival(results, environment))))


def _against_rival(results: FedACSResults, environment: Environment) -> str:
    gain = results.gain(results.line(environment.name, OURS), results.line(environment.name, RIVAL))
    if gain is None:
        return ""
    printed = environment.accuracy
    paper = f"; in the paper {printed[OURS] - printed[RIVAL]:+.1f}" if printed else ""
    return PROSE("rival", gain=results.points(gain), clearness=clearness(gain), paper=paper)
