"""Opening of On-Demand FL's page: results in sentences, and how the page was made."""

import numpy as np

from papers.measurements import GUESS
from papers.ondemand.results import NAMES, OnDemandResults, Place, error_cell
from papers.ondemand.scales import BASELINE, MANY, OURS, TARGETS, TITLES
from papers.page import Part
from papers.prose import Prose
from papers.sentences import made_by, verdict
from papers.store import OWN_MIX
from papers.wording import MISSING, bullets, counted, every_text, joined, spread

PROSE = Prose.beside(__file__)


def opening(results: OnDemandResults) -> list[Part]:
    """Return the results at each place, and the setup."""
    sentences = [
        f"{place.title}: {sentence}"
        for place in results.places
        for sentence in (
            _gains(results, place, "peak", "the best round of each"),
            _gains(results, place, "end", "the last rounds of each"),
            _others(results, place),
            _rounds(results, place),
            _estimates(results, place),
        )
        if sentence
    ]
    verdicts = [sentence for place in results.places if (sentence := _verdict(results, place))]
    answer = [PROSE("answer", better=" ".join(verdicts))] if verdicts else []
    return [*answer, *bullets(sentences), *PROSE.parts("paper"), *_setup(results)]


def _verdict(results: OnDemandResults, place: Place) -> str:
    """Say on which targets models on demand are better than FedAvg, by the best round of each."""
    gains = {NAMES[column]: results.gain(place, OURS, column, "peak") for column in TARGETS}
    return verdict("On-Demand FL", "FedAvg", gains, f"on {{}} ({place.title})")


def _setup(results: OnDemandResults) -> list[Part]:
    scale = results.scale
    often = [
        f"{every_text(task.evaluate_every)} on {task.title} ({every_text(task.evaluate_many_every)} of many models)"
        for task in scale.tasks
    ]
    return [
        "## Setup",
        *PROSE.parts(
            "setup",
            made_by=made_by(results.command, scale, results.store),
            scale=scale,
            local=scale.local,
            epochs=counted(int(scale.local["epochs"]), "epoch"),
            rounds="; ".join(PROSE("setup-task", task=task) for task in scale.tasks),
            evaluations=joined(often),
        ),
    ]


def _gains(results: OnDemandResults, place: Place, kind: str, when: str) -> str:
    """Say how many points models on demand gain on each target; the paper's are those of the peak."""
    gains = []
    for column in TARGETS:
        gain = results.gain(place, OURS, column, kind)
        if gain is not None:
            own, base = (place.printed_accuracy(method, column) for method in (OURS, BASELINE))
            paper = "" if kind != "peak" or own is None or base is None else f" (in the paper {own - base:+.0f})"
            gains.append(f"{NAMES[column]} {spread(gain, '{:+.1f}')}{paper}")
    return PROSE("gains", when=when, gains=joined(gains)) if gains else ""


def _others(results: OnDemandResults, place: Place) -> str:
    """Say how methods with many models do on clients' own mixes, for which they are made."""
    found = [method for method in TITLES if results.curves(place, method, OWN_MIX)]
    texts = {method: f"{TITLES[method]} {_peak_and_end(results, place, method)}" for method in found}
    others = [texts[method] for method in found if method in MANY]
    one_model = [texts[method] for method in (BASELINE, OURS) if method in found]
    beside = f" beside {joined(one_model)}" if one_model else ""
    return PROSE("others", others=joined(others), beside=beside) if others else ""


def _peak_and_end(results: OnDemandResults, place: Place, method: str) -> str:
    peak, end = (results.accuracy(place, method, OWN_MIX, kind) for kind in ("peak", "end"))
    return f"{peak} ({end})"


def _rounds(results: OnDemandResults, place: Place) -> str:
    """Say how soon models on demand are nearly at their best, and FedAvg on the same targets and seeds."""
    ours, base = (results.after_branch(place, method) for method in (OURS, BASELINE))
    common = sorted(set(ours) & set(base))
    if not common:
        return ""
    own, others = (np.mean([curves[one].rounds_to(0.95) for one in common]) for curves in (ours, base))
    return PROSE("rounds", own=own, others=others, count=len(common))


def _estimates(results: OnDemandResults, place: Place) -> str:
    """Say how far off the predictor is, beside the other estimates."""
    task = place.task
    runs = results.measured(place)
    early, late, exact, guess = (
        error_cell(runs, name, at)
        for name, at in (
            ("learned", task.estimated),
            ("learned", task.branch),
            ("analytic", task.branch),
            (GUESS, task.branch),
        )
    )
    if MISSING in (early, late, exact, guess):
        return ""
    paper = "" if place.printed is None else f" (in the paper {place.printed[0].error[place.printed[1]]:.2f})"
    return PROSE("estimates", early=early, late=late, exact=exact, guess=guess, task=task, paper=paper)
