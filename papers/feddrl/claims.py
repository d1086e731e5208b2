"""Verdicts on FedDRL's claims."""

from collections.abc import Sequence

import numpy as np

from covey.job.comparison.statistics import Estimate, Figure, best_accuracy, paired_difference
from papers.claims import NOT_TESTED, Claim, Gain, Verdict, claims_table, gain_claim
from papers.feddrl.printed import DECISION_SECONDS, printed_accuracy
from papers.feddrl.results import (
    CLUSTERED,
    FedDRLResults,
    environments,
    loss_mean,
    loss_variance,
    rounds_to_lowest,
    usual_accuracy,
    with_losses,
)
from papers.feddrl.scales import BASELINE, CONTROL, DELTA, OURS, SPLITS, Data, environment_name
from papers.feddrl.tables import server_rows
from papers.page import Part
from papers.store import Result


def claims(results: FedDRLResults) -> list[Part]:
    """Return the table of the paper's claims."""
    scale = results.scale
    many = [(scale.first, split, scale.many) for split in CLUSTERED]
    few = [(scale.first, split, scale.few) for split in CLUSTERED]
    hard = [(scale.hard, split, clients) for clients in (scale.many, scale.few) for split in CLUSTERED]
    shown = hard if scale.hard is scale.first else [*hard, *many]
    return claims_table(
        [
            gain_claim(
                f"More accurate than FedAvg, {scale.many} clients, 10 a round (Table 3, best round)",
                [_gain(results, place, best_accuracy, printed=True) for place in many],
            ),
            gain_claim(
                "The same, by the mean over the second half of the rounds (ours)",
                [_gain(results, place, usual_accuracy) for place in many],
            ),
            gain_claim(
                f"More accurate than FedAvg, {scale.few} clients, all in every round (Table 3, best round)",
                [_gain(results, place, best_accuracy, printed=True) for place in few],
            ),
            gain_claim(
                "Better than a one-line rule, softmax of losses (ours, best round)",
                [_gain(results, place, best_accuracy, base=CONTROL) for place in many],
            ),
            _less("Clients' losses vary less than with FedAvg (Fig. 6)", results, shown, loss_variance),
            _less("The mean of clients' losses is lower than with FedAvg (Fig. 6)", results, shown, loss_mean),
            _fast(results),
            _decision(results),
            _over_values(
                f"Ahead of FedAvg whatever the number of clients in a round, {scale.hard.title} CE (Fig. 7)",
                *(results, scale.hard, "K", scale.cohorts, "cohort", scale.cohort),
            ),
            _over_values(
                f"Ahead of FedAvg whatever the size of the main group, {scale.first.title} CE (Fig. 8)",
                *(results, scale.first, "δ", scale.deltas, "delta", DELTA),
            ),
        ]
    )


Place = tuple[Data, str, int]


def _title(place: Place) -> str:
    data, split, clients = place
    return f"{data.title} {SPLITS[split]}, {clients} clients:"


def _gain(
    results: FedDRLResults, place: Place, figure: Figure[Result], *, base: str = BASELINE, printed: bool = False
) -> Gain:
    """Return FedDRL's gain in a place, with the printed one beside it."""
    data, split, clients = place
    name = environment_name(data, split, clients)
    paper = printed_accuracy(data.name, clients, split) if printed else {}
    found = paired_difference(figure, results.line(name, OURS), results.line(name, base))
    return Gain(_title(place), found, paper[OURS] - paper[BASELINE] if paper else None)


def _less(text: str, results: FedDRLResults, places: list[Place], figure: Figure[Result]) -> Claim:
    """Return the claim that a figure of clients' losses is below FedAvg's."""
    gains = []
    for place in places:
        name = environment_name(*place)
        ours, base = (with_losses(results.line(name, method)) for method in (OURS, BASELINE))
        less = paired_difference(figure, base, ours)
        # As a share of FedAvg's, so that places can be compared.
        whole = float(np.mean([figure(run, None) for run in base.values()])) if base else 1.0
        share = None if less is None else _divided(less, whole)
        gains.append(Gain(f"{_title(place)} lower by", share, form="{:.0f}", unit=" %"))
    return gain_claim(text, gains)


def _divided(estimate: Estimate, by: float) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        estimate.mean / by, estimate.median / by, None if low is None else low / by, None if high is None else high / by
    )


def _fast(results: FedDRLResults) -> Claim:
    """Return the claim that FedDRL needs about as few rounds as the fastest (Fig. 10)."""
    text = "Reaches the lowest of the methods' best accuracies about as fast as the fastest (Fig. 10)"
    found = {}
    for data, split, clients, name in environments(results.scale, CLUSTERED):
        reached = rounds_to_lowest(results.lines(name))
        if reached is not None and OURS in reached[1]:
            first = min(one.mean for one in reached[1].values())
            found[_title((data, split, clients))] = reached[1][OURS].mean / first
    if not found:
        return Claim(text, NOT_TESTED)
    slow = [ratio for ratio in found.values() if ratio > 1.1]
    verdict: Verdict = "holds" if not slow else "does not hold" if len(slow) == len(found) else "holds in part"
    shown = [f"{place} {ratio:.1f} times the rounds of the fastest" for place, ratio in found.items()]
    return Claim(text, verdict, "; ".join(shown))


def _decision(results: FedDRLResults) -> Claim:
    """Return the claim about the time of a decision (Fig. 9)."""
    text = f"A decision takes no more than {1e3 * DECISION_SECONDS:g} ms (Fig. 9)"
    measured = [row for row in server_rows(results.store, "feddrl") if "decides" in row[0]]
    if not measured:
        return Claim(text, NOT_TESTED)
    slowest = max(float(milliseconds) for _, milliseconds in measured)
    shown = "; ".join(f"{about}: {milliseconds} ms" for about, milliseconds in measured)
    return Claim(text, "holds" if slowest <= 1e3 * DECISION_SECONDS else "does not hold", shown)


def _over_values(
    text: str, results: FedDRLResults, data: Data, setting: str, values: Sequence[float], variant: str, usual: float
) -> Claim:
    """Return the claim that FedDRL is ahead of FedAvg at every value of a setting; `usual` is that of the tables."""
    name = environment_name(data, "ce", results.scale.many)
    gains = []
    for value in sorted((*values, usual)):
        lines = [
            results.line(name, method, "" if value == usual else f"{variant}{value:g}") for method in (OURS, BASELINE)
        ]
        gains.append(Gain(f"{setting} = {value:g}:", paired_difference(best_accuracy, *lines)))
    return gain_claim(text, gains)
