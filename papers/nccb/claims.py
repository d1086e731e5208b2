"""Verdicts on NCCB's claims."""

from covey.job.comparison.statistics import Estimate
from papers.claims import NOT_TESTED, Claim, Gain, Verdict, claims_table, gain_claim
from papers.nccb.results import NCCBResults, rounds_saved, rounds_to_best
from papers.nccb.scales import BASELINE, BITS, LINEAR, OURS, REGRET, TITLES
from papers.nccb.text import PROSE, printed_gain
from papers.page import Part
from papers.wording import counted


def claims(results: NCCBResults) -> list[Part]:
    """Return the table of the paper's claims."""
    scale = results.scale
    longest, fewest, shortest = max(scale.thresholds), min(scale.corpora[0].fewer_clients), min(scale.bits)
    return [
        *claims_table(
            [
                *(_more_accurate(results, method) for method in (BASELINE, LINEAR, "oort-simple")),
                _fewer_rounds(results),
                _own_variant(results, f"k = {scale.threshold} above k = {longest} (Fig. 3)", f"threshold{longest}"),
                _own_variant(results, "All clients above the fewest (Fig. 4)", f"clients{fewest}"),
                _own_variant(results, f"{BITS} bits above {shortest} (Fig. 5)", f"bits{shortest}"),
                _its_objective(results),
                _lower_loss(results),
            ]
        ),
        *PROSE.parts("claims"),
    ]


def _more_accurate(results: NCCBResults, method: str) -> Claim:
    """Return the claim that NCCB is more accurate than another method."""
    gains = []
    for corpus in results.scale.corpora:
        found = results.gain(results.line(corpus.name, OURS), results.line(corpus.name, method))
        paper = None if corpus.printed is None else printed_gain(corpus.printed, method)
        gains.append(Gain(f"{corpus.title}:", found, paper))
    return gain_claim(f"More accurate than {TITLES[method]} (Table 1)", gains)


def _own_variant(results: NCCBResults, text: str, variant: str) -> Claim:
    """Return the claim that NCCB as it is is more accurate than with another value of a setting."""
    gains = [
        Gain(f"{one.title}:", results.gain(results.line(one.name, OURS), results.line(one.name, OURS, variant)))
        for one in results.scale.corpora
    ]
    return gain_claim(text, gains)


def _fewer_rounds(results: NCCBResults) -> Claim:
    """Return the claim that NCCB reaches random selection's best in fewer rounds."""
    text = "Fewer rounds to the best accuracy of random selection (Table 2)"
    shown, all_fewer = [], []
    for corpus in results.scale.corpora:
        pairs = rounds_to_best(results.line(corpus.name, OURS), results.line(corpus.name, BASELINE))
        if pairs:
            fewer = sum(own is not None and own < before for own, before in pairs)
            saved, paper = rounds_saved(pairs), corpus.printed and corpus.printed.saved[OURS]
            printed = "" if paper is None else f" (paper {paper:.0f} %)"
            seeds = f"fewer with {fewer} of {counted(len(pairs), 'seed')}"
            share = "" if saved is None else f"{saved:.0f} % saved, "
            shown.append(f"{corpus.title}: {share}{seeds}{printed}")
            all_fewer.append(fewer == len(pairs))
    if not shown:
        return Claim(text, NOT_TESTED)
    verdict: Verdict = "holds" if all(all_fewer) else "holds in part" if any(all_fewer) else "does not hold"
    return Claim(text, verdict, "; ".join(shown))


def _its_objective(results: NCCBResults) -> Claim:
    """Return the claim that cohorts have higher losses than clients at large, which is what the method is after."""
    gains = []
    for corpus in results.scale.corpora:
        ratio = results.loss_ratio(results.line(corpus.name, OURS, REGRET))
        above = None if ratio is None else _less_one(ratio)
        gains.append(Gain(f"{corpus.title}: above that of all clients by", above, form="{:+.0f}", unit=" %"))
    return gain_claim("Cohorts have a higher loss than all clients (eqs. 2 and 3)", gains)


def _less_one(ratio: Estimate) -> Estimate:
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return Estimate(ratio.mean - 1, ratio.median - 1, low, high)


def _lower_loss(results: NCCBResults) -> Claim:
    """Return whether NCCB ends with a lower test loss than random selection, which the paper does not show."""
    gains = []
    for corpus in results.scale.corpora:
        # Random selection's loss less NCCB's: above zero is in favour of NCCB.
        found = results.loss_gain(results.line(corpus.name, BASELINE), results.line(corpus.name, OURS))
        gains.append(Gain(f"{corpus.title}: lower by", found, form="{:.3f}", factor=1.0))
    return gain_claim("A lower test loss than random selection (ours)", gains)
