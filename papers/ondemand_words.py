"""What the page of On-Demand FL says before its tables: how it was made, and what holds, in sentences."""

import numpy as np

from papers.measuring import GUESS
from papers.ondemand import BASELINE, MANY, OURS, TARGETS, TITLES
from papers.ondemand_lines import (
    NAMES,
    About,
    Place,
    accuracy_cell,
    after_branch,
    error_cell,
    points_above_fedavg,
)
from papers.openings import made_by
from papers.pages import MISSING, Part, bullets, counted, every_text, joined, spread
from papers.store import OWN_MIX


def opening(about: About) -> list[Part]:
    scale, local = about.scale, about.scale.local
    rounds = "; ".join(
        f"{task.title}: {task.rounds:,} rounds of FedAvg, fine-tuning for {task.tuned} from round {task.branch:,}, "
        f"estimates of round {task.estimated}"
        for task in scale.tasks
    )
    often = [
        f"{every_text(task.evaluate_every)} on {task.title} ({every_text(task.evaluate_many_every)} of many models)"
        for task in scale.tasks
    ]
    evaluations = f"Evaluations are {joined(often)}: of fewer of them the best is lower."
    return [
        'Jeong and Lee, "On-Demand Federated Learning for Arbitrary Target Class Distributions", AISTATS 2024: its '
        "tables and figures beside what Covey measures.",
        f"{made_by(about.command, scale, about.store)} Settings: {scale.clients} clients, every class split over them "
        f"by a Dirichlet(α), {scale.cohort} a round, {counted(int(local['epochs']), 'epoch')} in batches of "
        f"{local['batch']}, rate {local['rate']:g}, momentum {local['momentum']:g}. {rounds}.",
        "Accuracies are in percent. Accuracy on a target is the mean of the accuracies of all classes, weighted by the "
        "target's mix, over all test images; the paper takes a part of them that has this mix. It does not say which "
        "round it reports. Here it is the best one (the peak), which its Table 4 suggests, and beside it the mean over "
        "the last 5 % of the rounds (the end). FedAvg's peak is the best of all its rounds, that of a model on demand "
        "the best of its fine-tuning; in Local it is the best round of the mean over clients, one for all of them, "
        f"since each alone would have a round that suits it by chance. {evaluations}",
        "± is half of Student's 95 % interval over seeds, each with a split of the data of its own; differences are "
        "taken seed by seed and target by target. The paper has one seed. Only runs at their end count.",
        f"Local is the mean over the mixes of {scale.clients_as_targets} clients (in the paper, of all "
        "100), each with a model that is fine-tuned for it; for FedAvg and for methods with a model for each client or "
        "cluster it is the mean over all clients, and where FedAvg and models on demand are compared, over the same "
        "ones. On TD 1 to 3 these methods are judged by the mean "
        "over all clients' models.",
        "Where this differs from the authors' runs: the last layer has a bias, so that class shares can also be "
        "computed in closed form on the same run. The predictor sees gradients at the model that a client received, "
        "and is applied to the mean of them, which is what the paper says that a client sends; the authors' code "
        "applies it to the gradient of every mini-batch and takes the mean of what comes out. Ratios are composed from "
        "class shares as printed in equations 7 and 8 and weigh the models; the authors' code scales shares by numbers "
        "of samples and then weighs by the ratios alone, which composes another mix than the "
        "one it solves for. In the authors' code the test sets of CFL, FMTL and FedFomo for TD 1 to 3 are looked up by "
        "a share of the clients where a share of the classes is meant: with ten classes they are mixes of single "
        "clients, so the paper's figures in these cells are not about TD 1 to 3 (those of CIFAR-100 are); and its "
        "FMTL has a regulariser without a gradient, which makes it local training. Ours are on the targets that the "
        "others are on.",
    ]


def in_words(about: About) -> list[Part]:
    """What holds at each place, in sentences."""
    said = [
        f"{place.title}: {sentence}"
        for place in about.places
        for sentence in (
            _gains_in_words(about, place, "peak", "the best round of each"),
            _gains_in_words(about, place, "end", "the last rounds of each"),
            _others_in_words(about, place),
            _rounds_in_words(about, place),
            _estimates_in_words(about, place),
        )
        if sentence
    ]
    return bullets(said)


def _gains_in_words(about: About, place: Place, kind: str, when: str) -> str:
    """Points above FedAvg on each target; the paper's are those of the peak."""
    gains = []
    for column in TARGETS:
        gain = points_above_fedavg(about, place, OURS, column, kind)
        if gain is not None:
            own, base = (place.printed_accuracy(method, column) for method in (OURS, BASELINE))
            theirs = "" if kind != "peak" or own is None or base is None else f" (in the paper {own - base:+.0f})"
            gains.append(f"{NAMES[column]} {spread(gain, '{:+.1f}')}{theirs}")
    return f"points that a model on demand gains over FedAvg, by {when}: {joined(gains)}." if gains else ""


def _others_in_words(about: About, place: Place) -> str:
    """What methods with many models come to where they are meant to be good: clients on their own mixes."""
    there = [method for method in TITLES if about.curves(place, method, OWN_MIX)]
    told = {method: f"{TITLES[method]} {_peak_and_end(about, place, method)}" for method in there}
    others = [told[method] for method in there if method in MANY]
    one_model = [told[method] for method in (BASELINE, OURS) if method in there]
    beside = f" beside {joined(one_model)}" if one_model else ""
    if not others:
        return ""
    return (
        "clients' own mixes (Local), by the best round and, in brackets, the last ones: "
        f"{joined(others)}{beside}. Methods with many models are made for these mixes, not for TD 1 to 3."
    )


def _peak_and_end(about: About, place: Place, method: str) -> str:
    peak, end = (accuracy_cell(about, place, method, OWN_MIX, kind) for kind in ("peak", "end"))
    return f"{peak} ({end})"


def _rounds_in_words(about: About, place: Place) -> str:
    """How soon models on demand are nearly as good as they get, and FedAvg on the same targets and seeds."""
    ours, base = (after_branch(about, place, method) for method in (OURS, BASELINE))
    common = sorted(set(ours) & set(base))
    if not common:
        return ""
    own, others = (np.mean([curves[one].rounds_to(0.95) for one in common]) for curves in (ours, base))
    return (
        f"fine-tuning comes to 95 % of its best accuracy in {own:.1f} rounds on average, FedAvg going on in "
        f"{others:.1f} ({len(common)} targets x seeds)."
    )


def _estimates_in_words(about: About, place: Place) -> str:
    """How far off the predictor is where clients are composed by it, beside what other estimates are off."""
    task = place.task
    runs = about.measured(place)
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
    theirs = "" if place.printed is None else f" (in the paper {place.printed[0].error[place.printed[1]]:.2f})"
    return (
        f"n·MAE of class shares by the predictor is {early} after {task.estimated} rounds{theirs} and {late} after "
        f"{task.branch:,}, in closed form {exact}; a uniform guess is off by {guess}."
    )
