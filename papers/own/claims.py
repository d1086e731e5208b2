"""What the comparison must show, with a verdict on each."""

from collections.abc import Mapping

from covey.job.comparison.statistics import Estimate, paired_difference
from papers.claims import NOT_TESTED, Claim, Gain, Verdict, claims_table, gain_claim
from papers.own.lines import PREFIXES, TUNED, TUNED_FROM_OURS
from papers.own.results import OwnResults
from papers.own.scales import BASELINE, FEW, OURS, PLUS, PRINTED, REFERENCE, SELECTING, SKEWED, TITLES
from papers.page import Part
from papers.wording import joined

_MEANINGS: Mapping[Verdict, str] = {
    "holds": "a goal of points holds where the difference is clear of zero and its mean as large; one of not being "
    "below, where no mean is below",
    "holds in part": "holds in part: in some of the places, or only some have been run",
    "open": "open: a mean misses the goal, and its interval does not exclude that it is reached",
    "does not hold": "does not hold: the interval excludes it, or no difference is clear of zero",
    "not tested": "not tested: not run, or with one seed only",
}


def goals(results: OwnResults) -> list[Part]:
    """Return the table of goals."""
    clusters = list(results.scale.clustered_environments)
    return claims_table(
        [
            *(_over_printed(results, place, points) for place, points in (("uniform", 1.5), (FEW, 4.0))),
            *(_not_below(results, name) for name in SELECTING),
            _not_below_iid(results),
            _clusters(results, clusters),
            _fast(results),
            _on_demand(results),
            _text(results),
            _costs_at_most(results, "epsilon1", 1.0, "ε = 1 for each client costs at most one point (few classes)"),
            _costs_at_most(
                results, "updates", 1.5, "Shares from updates cost at most a point and a half (few classes)"
            ),
        ],
        "goal",
        _MEANINGS,
    )


def _over_printed(results: OwnResults, place: str, points: float) -> Claim:
    found = {TITLES[name]: results.against_printed(place, name) for name in PRINTED}
    return _at_least(f"At least +{points:g} over the papers' methods as printed ({SKEWED[place]})", found, points)


def _at_least(text: str, found: dict[str, Estimate | None], points: float) -> Claim:
    """Return a goal of so many points: reached where the difference is clear of zero and its mean is as large."""
    tested = {name: gain for name, gain in found.items() if gain is not None and gain.low is not None}
    if not tested:
        return Claim(text, NOT_TESTED)
    ahead = [name for name, gain in tested.items() if gain.low is not None and gain.low > 0]
    reached = [name for name in ahead if tested[name].mean >= points / 100]
    possible = any(gain.high is not None and gain.high >= points / 100 for gain in tested.values())
    verdict: Verdict = "holds in part" if ahead else "open" if possible else "does not hold"
    if len(reached) == len(found):
        verdict = "holds"
    left = (
        "" if len(tested) == len(found) else f"; not tested: {joined([name for name in found if name not in tested])}"
    )
    shown = "; ".join(Gain(f"{name}:", gain, form="{:+.1f}").text for name, gain in tested.items())
    return Claim(text, verdict, shown + left)


def _not_below(results: OwnResults, name: str) -> Claim:
    """Return the goal of not being below a rival with the same server, anywhere."""
    text = f"Not below {TITLES[name]} with momentum and averaging, in any of FedACS's environments"
    found = {title: results.against(place, name, PLUS) for place, title in SKEWED.items()}
    return _none_below(text, found)


def _none_below(text: str, found: dict[str, Estimate | None]) -> Claim:
    tested = {title: gain for title, gain in found.items() if gain is not None and gain.low is not None}
    if not tested:
        return Claim(text, NOT_TESTED)
    clearly = any(gain.high is not None and gain.high < 0 for gain in tested.values())
    verdict: Verdict = "holds" if len(tested) == len(found) else "holds in part"
    if any(gain.mean < 0 for gain in tested.values()):
        verdict = "does not hold" if clearly else "open"
    return Claim(
        text, verdict, "; ".join(Gain(f"{title}:", gain, form="{:+.1f}").text for title, gain in tested.items())
    )


def _not_below_iid(results: OwnResults) -> Claim:
    text = "Not below IID with FedAvg as printed, in any of FedACS's environments"
    found: dict[str, Estimate | None] = {
        title: results.against_printed(place, REFERENCE) for place, title in SKEWED.items()
    }
    return _none_below(text, found)


def _clusters(results: OwnResults, clusters: list[str]) -> Claim:
    found = {name: results.against_printed(name, "feddrl", late=True) for name in clusters}
    return _at_least("At least +5 over FedDRL by the second half of the rounds (FedDRL's settings)", found, 5.0)


def _fast(results: OwnResults) -> Claim:
    text = "Reaches the accuracy at which FedAvg ends in at most half of its rounds, in every setting of images"
    places = {**SKEWED, **{name: name for name in results.scale.clustered_environments}}
    shares = {title: results.rounds_against_random(place, OURS, "") for place, title in places.items()}
    tested = {title: share for title, share in shares.items() if share is not None}
    if not tested:
        return Claim(text, NOT_TESTED)
    within = [title for title, share in tested.items() if share.mean <= 0.5]
    verdict: Verdict = "holds" if len(within) == len(places) else "holds in part" if within else "does not hold"
    return Claim(text, verdict, "; ".join(f"{title}: {share.mean:.0%}" for title, share in tested.items()))


def _on_demand(results: OwnResults) -> Claim:
    text = "On-demand models not below those from FedAvg's base run, in half of the rounds"
    found = {}
    for target in PREFIXES:
        lines = [results.line("ondemand", name, target) for name in (TUNED_FROM_OURS, TUNED)]
        found[target.upper()] = paired_difference(results.accuracy, *lines)
    return _none_below(text, found)


def _text(results: OwnResults) -> Claim:
    gains = [
        Gain(
            f"{corpus.title}:",
            paired_difference(
                results.accuracy, results.line(corpus.name, OURS), results.line(corpus.name, BASELINE, PLUS)
            ),
            form="{:+.2f}",
        )
        for corpus in results.scale.texts
    ]
    return gain_claim("Above random selection with the same server, on texts", gains)


def _costs_at_most(results: OwnResults, variant: str, points: float, text: str) -> Claim:
    cost = paired_difference(results.accuracy, results.line(FEW, OURS, variant), results.line(FEW, OURS))
    if cost is None or cost.low is None or cost.high is None:
        return Claim(text, NOT_TESTED)
    bound = -points / 100
    verdict: Verdict = "holds" if cost.low > bound else "open" if cost.mean > bound else "does not hold"
    return Claim(text, verdict, Gain("few classes:", cost, form="{:+.1f}").text)
