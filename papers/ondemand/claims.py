"""The paper's claims beside our figures: a verdict for each, at every place that has results."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from covey.job.comparison.statistics import Estimate
from papers.measurements import GUESS
from papers.ondemand.results import NAMES, OnDemandResults, Place, mean_error, mean_over_targets
from papers.ondemand.scales import BASELINE, MANY, MEAN, MEAN_BASE, OURS, SAME, TARGETS, TITLES, TRUE
from papers.ondemand.text import PROSE
from papers.page import Part
from papers.store import OWN_MIX
from papers.wording import bullets, joined, spread

HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold"

_NEAR = 0.1
"""n·MAE above the paper's figure that still counts as the same."""


class PlaceVerdict(NamedTuple):
    """Verdict on a claim at one place."""

    verdict: str
    ours: str
    paper: str


def claims(results: OnDemandResults) -> list[Part]:
    """Return each claim with its verdicts, and where it was not tested."""
    parts: list[Part] = [PROSE("claims")]
    for name, judge in _CLAIMS.items():
        sentences, absent = [], []
        for place in results.places:
            for method, inference in ((OURS, "eq. 6"), (MEAN, "mean gradient")):
                claim = judge(results, place, method)
                if claim is not None:
                    paper = f" (in the paper {claim.paper})" if claim.paper else ""
                    sentences.append(f"{place.title}, {inference}: **{claim.verdict}**. {claim.ours}{paper}.")
                elif method == OURS:
                    absent.append(place)
        untested = [PROSE("untested", places="; ".join(_by_task(absent)))] if absent else []
        parts += [f"**{PROSE(f'claim-{name}')}**", *bullets([*sentences, *untested])]
    return parts


def _by_task(places: Sequence[Place]) -> list[str]:
    """List places, the αs of a data set together."""
    titles = dict.fromkeys(place.task.title for place in places)
    return [
        f"{title}, α = {joined([f'{place.alpha:g}' for place in places if place.task.title == title])}"
        for title in titles
    ]


def _more_accurate(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """Models on demand are more accurate on their targets than FedAvg."""
    gains = {column: results.gain(place, method, column, "peak") for column in TARGETS}
    found = {column: gain for column, gain in gains.items() if gain is not None}
    printed = [_printed_gain(place, BASELINE, column) for column in found]
    return _judged({NAMES[column]: gain for column, gain in found.items()}, printed)


def _same_clients(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """The ratios matter: more accurate than FedAvg on the same clients."""
    if method != OURS:
        return None
    gains = {column: results.gain(place, method, column, "peak", SAME) for column in TARGETS}
    return _judged({NAMES[column]: gain for column, gain in gains.items() if gain is not None}, [])


def _above_many_models(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """More accurate on clients' own mixes than methods with a model for each client or cluster."""
    own = _local_peaks(results, place, method)
    found, printed = {}, []
    for other in MANY:
        theirs = _local_peaks(results, place, other)
        common = sorted(set(own) & set(theirs))
        if common:
            found[TITLES[other]] = Estimate.of([own[seed] - theirs[seed] for seed in common])
            printed.append(_printed_gain(place, other, OWN_MIX))
    return _judged(found, printed)


def _local_peaks(results: OnDemandResults, place: Place, method: str) -> dict[int, float]:
    """Return seed → best accuracy on clients' own mixes, one round for all of them."""
    found = results.curves(place, method, OWN_MIX)
    return {seed: mean_over_targets(list(curves.values())).peak for seed, curves in found.items()}


def _estimated(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """Class shares are estimated from gradients as well as printed."""
    runs = results.measured(place, BASELINE if method == OURS else MEAN_BASE)
    error, guess = (mean_error(runs, name, place.task.estimated) for name in ("learned", GUESS))
    if error is None or guess is None:
        return None
    printed = None if place.printed is None else place.printed[0].error[place.printed[1]]
    near = printed is not None and error.mean <= printed + _NEAR
    verdict = HOLDS if near else PARTLY if error.mean < guess.mean else FAILS
    ours = f"n·MAE {spread(error, '{:.2f}', 1.0)}; uniform guess {guess.mean:.2f}"
    return PlaceVerdict(verdict, ours, "" if printed is None else f"{printed:.2f}")


def _fewer_rounds(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """Fine-tuning takes fewer rounds to 98 % of its peak than FedAvg, continued."""
    ours, base = (results.after_branch(place, one) for one in (method, BASELINE))
    common = sorted(set(ours) & set(base))
    if not common:
        return None
    own, others = (float(np.mean([curves[one].rounds_to(0.98) for one in common])) for curves in (ours, base))
    paper = ""
    if place.printed is not None:
        printed, at = place.printed
        mine, theirs = (printed.rounds[name][at][1].split(" ")[0] for name in (OURS, BASELINE))
        paper = f"{mine} against {theirs}"
    return PlaceVerdict(HOLDS if own < others else FAILS, f"{own:.1f} rounds against {others:.1f}", paper)


def _few_clients(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """About a tenth of the clients composes a target, as closely as printed."""
    found = [one for column in TARGETS for one in results.compositions(place, method, column)]
    if not found:
        return None
    clients, distance = (float(np.mean([one[key] for one in found])) for key in ("clients", "true_distance"))
    ours = f"{clients:.1f} of {results.scale.clients} clients, n·MAE {distance:.2f}"
    if place.printed is None:
        return PlaceVerdict(HOLDS if clients <= 0.2 * results.scale.clients else FAILS, ours, "")
    cells = [cell.rstrip(")").split(" (") for cell in place.printed[0].composed[place.printed[1]]]
    off, count = (float(np.mean([float(cell[number]) for cell in cells])) for number in (0, 1))
    few, near = clients <= 1.5 * count, distance <= off + _NEAR
    return PlaceVerdict(
        HOLDS if few and near else PARTLY if few else FAILS, ours, f"{count:.1f} clients, n·MAE {off:.2f}"
    )


def _near_the_truth(results: OnDemandResults, place: Place, method: str) -> PlaceVerdict | None:
    """Estimated shares cost little: a point or two below true shares, as printed."""
    losses = {column: results.gain(place, method, column, "peak", TRUE) for column in TARGETS}
    found = {column: loss for column, loss in losses.items() if loss is not None}
    if not found:
        return None
    printed = [_printed_gain(place, TRUE, column) for column in found]
    ours = float(np.mean([100 * loss.mean for loss in found.values()]))
    allowed = min([-1.0, *(one for one in printed if one is not None)])
    inside = [100 * loss.mean >= allowed for loss in found.values()]
    verdict = HOLDS if all(inside) else PARTLY if any(inside) or ours >= allowed else FAILS
    return PlaceVerdict(verdict, *_figures({NAMES[column]: loss for column, loss in found.items()}, printed))


_CLAIMS = {
    "accurate": _more_accurate,
    "same-clients": _same_clients,
    "many-models": _above_many_models,
    "estimates": _estimated,
    "clients": _few_clients,
    "rounds": _fewer_rounds,
    "truth": _near_the_truth,
}


def _printed_gain(place: Place, other: str, column: str) -> float | None:
    """Return the points that models on demand are above another method in the paper."""
    own, theirs = (place.printed_accuracy(method, column) for method in (OURS, other))
    return None if own is None or theirs is None else own - theirs


def _judged(gains: dict[str, Estimate], printed: Sequence[float | None]) -> PlaceVerdict | None:
    """Judge a claim that all gains are above zero; by one seed, which has no interval, it holds in part at most."""
    if not gains:
        return None
    above = [gain.mean > 0 and gain.clear_of_zero is not False for gain in gains.values()]
    sure = all(above) and all(gain.clear_of_zero for gain in gains.values())
    return PlaceVerdict(HOLDS if sure else PARTLY if any(above) else FAILS, *_figures(gains, printed))


def _figures(gains: dict[str, Estimate], printed: Sequence[float | None]) -> tuple[str, str]:
    """Cells: our gains in points by name, and the paper's in the same order."""
    ours = joined([f"{name} {spread(gain, '{:+.1f}')}" for name, gain in gains.items()])
    one = ", one seed" if any(gain.clear_of_zero is None for gain in gains.values()) else ""
    return ours + one, ", ".join("-" if value is None else f"{value:+.0f}" for value in printed)
