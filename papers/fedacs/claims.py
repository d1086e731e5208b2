"""Verdicts on FedACS's claims."""

import numpy as np

from covey.job.comparison.statistics import Estimate, paired_difference, speed_up
from papers.claims import NOT_TESTED, Claim, Gain, Verdict, claims_table, gain_claim
from papers.curves import numbers
from papers.fedacs.results import FedACSResults, poisoned_invitations, pool_variant
from papers.fedacs.scales import BASELINE, ENVIRONMENTS, METHODS, OURS, POISONED, POOL, REFERENCE, TITLES, Environment
from papers.page import Part

_SETTLED = 200
"""Round by which, in the paper, the skew of the invited clients has settled."""


def claims(results: FedACSResults) -> list[Part]:
    """Return the table of the paper's claims."""
    rivals = [method for method in METHODS if method not in (BASELINE, OURS, REFERENCE)]
    return claims_table(
        [
            _ahead_of("More accurate than random selection (Table II)", results, BASELINE),
            *(_ahead_of(f"More accurate than {TITLES[name]} (Table II)", results, name) for name in rivals),
            _faster(results),
            _settles(results),
            _pools(results),
            _early_stop(results),
            _poisoners(results),
        ]
    )


def _ahead_of(text: str, results: FedACSResults, base: str) -> Claim:
    """Return the claim that FedACS is more accurate than another method."""
    gains = []
    for one in ENVIRONMENTS:
        found = results.gain(results.line(one.name, OURS), results.line(one.name, base))
        printed = one.accuracy[OURS] - one.accuracy[base] if base in one.accuracy else None
        gains.append(Gain(f"{one.title}:", found, printed, form="{:+.1f}"))
    return gain_claim(text, gains)


def _faster(results: FedACSResults) -> Claim:
    """Return the claim that FedACS needs half of the rounds."""
    text = "Reaches a target accuracy about twice as fast as random selection (Table III)"
    factors: list[tuple[Environment, float]] = []
    for one in ENVIRONMENTS:
        ours, base = (results.line(one.name, method) for method in (OURS, BASELINE))
        if one.target is not None and ours and base:
            found = speed_up(ours, base, one.target)
            if found is not None:
                factors.append((one, found.factor))
    if not factors:
        return Claim(text, NOT_TESTED)
    shown = [f"{one.title}: {factor:.1f}x (paper {one.speed_up[OURS]:.1f}x)" for one, factor in factors]
    twice = [factor >= 0.9 * one.speed_up[OURS] for one, factor in factors]
    verdict: Verdict = (
        "holds" if all(twice) else "holds in part" if max(factor for _, factor in factors) > 1 else "does not hold"
    )
    return Claim(text, verdict, "; ".join(shown))


def _settles(results: FedACSResults) -> Claim:
    """Return the claim about the skew of the invited clients."""
    text = f"The mean α of invited clients falls and settles by round {_SETTLED} (Fig. 8)"
    line = {seed: run for seed, run in results.line("uniform", OURS).items() if run.rounds > _SETTLED}
    if not line:
        return Claim(text, NOT_TESTED)
    skews = np.stack([numbers(run.cohort_skew)[: min(one.rounds for one in line.values())] for run in line.values()])
    first, early, late = (
        float(np.nanmean(skews[:, part])) for part in (slice(0, 10), slice(150, 250), slice(-100, None))
    )
    shown = f"uniform: {first:.2f} in the first ten rounds, {early:.2f} around round {_SETTLED}, {late:.2f} at the end"
    fallen, settled = early < first, abs(late - early) < 0.25 * abs(first - late)
    return Claim(text, "holds" if fallen and settled else "holds in part" if fallen else "does not hold", shown)


def _pools(results: FedACSResults) -> Claim:
    """Return the claim that λ = 0.4 is best."""
    text = f"A pool of λ = {POOL:g} is best, and λ = 0.05 worse than random selection (Fig. 7)"
    lines = {pool: results.line("uniform", OURS, pool_variant(pool)) for pool in sorted((*results.scale.pools, POOL))}
    if not all(lines.values()):
        return Claim(text, NOT_TESTED)
    ends = {pool: results.estimate(line).mean for pool, line in lines.items()}
    best = max(ends, key=lambda pool: ends[pool])
    shown = ", ".join(f"{pool:g}: {100 * end:.1f}" for pool, end in ends.items())
    return Claim(text, "holds" if best == POOL else "does not hold", f"terminal accuracy by λ: {shown}")


def _early_stop(results: FedACSResults) -> Claim:
    """Return the claim that insights of the first rounds are enough: no loss of more than half a point."""
    stop = results.scale.early_stop
    text = f"Insights in the first {stop} rounds are enough (Fig. 10)"
    found = results.gain(results.line("uniform", OURS, f"early{stop}"), results.line("uniform", OURS))
    if found is None or found.low is None:
        return Claim(text, NOT_TESTED)
    shown = Gain("uniform, against insights in all rounds:", found, form="{:+.1f}").text
    return Claim(text, "holds" if found.low > -0.005 else "open" if found.mean > -0.005 else "does not hold", shown)


def _poisoners(results: FedACSResults) -> Claim:
    """Return the claim that clients with wrong labels are avoided."""
    text = "Clients whose labels are wrong are invited less than others (section VII-A)"
    line = results.line("uniform", OURS, POISONED)
    share = poisoned_invitations(line)
    if share is None or share.low is None or share.high is None:
        return Claim(text, NOT_TESTED)
    less = Estimate(1 - share.mean, 1 - share.median, 1 - share.high, 1 - share.low)
    base = paired_difference(results.accuracy, line, results.line("uniform", BASELINE, POISONED))
    accuracy = "" if base is None else "; " + Gain("accuracy against random selection:", base, form="{:+.1f}").text
    gain = Gain("invitations of a client with wrong labels, less than the mean by", less, form="{:.0f}", unit=" %")
    return Claim(text, gain.verdict, gain.text + accuracy)
