"""What does skew cost, and what wins it back? Methods on clustered clients, beside the same clients without skew."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.loop import OnRound
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.execution import compare
from covey.job.comparison.statistics import REFERENCE, Estimate
from covey.job.demo.wording import Difference
from covey.job.pending_runs import OnRun

QUESTION = "What does skew cost, and what wins it back?"

BASE, OURS = "fedavg", "covey"
METHODS = (BASE, OURS, "fedacs", REFERENCE)

NAMES = {BASE: "FedAvg", OURS: "our method covey", "fedacs": "FedACS", REFERENCE: "FedAvg without skew"}
"""Method → its name in a sentence."""

LABELS = 2
"""Classes of a client."""

SETTING: dict[str, Any] = {
    "dataset": "digits",
    "environment": {"name": "clustered-equal", "groups": "overlapping", "labels": LABELS},
    "clients": 40,
    "cohort": 6,
    "rounds": 60,
    "runtime": "stacked",
    "device": "cpu",
}
"""Cluster skew: 60 % of the clients hold the same two classes, the others two random ones each. All else is as Covey
has it by default, and the methods have no options."""

COMMAND = "covey compare --methods fedavg,covey,fedacs,iid --seeds 5 --dataset mine.csv --environment natural"


@dataclass(frozen=True, eq=False)
class SkewCost:
    """Runs of all methods on the same federations, and the differences between them."""

    comparison: Comparison

    question = QUESTION
    command = COMMAND

    @property
    def federations(self) -> int:
        """Number of federations: each is a split, an initial model and all draws of its own."""
        return len(self.comparison.runs[BASE])

    @cached_property
    def curves(self) -> dict[str, FloatArray]:
        """Method → accuracy by round `[federations, rounds]`."""
        return {
            method: np.array([[row["accuracy"] for row in run.metrics] for run in runs])
            for method, runs in self.comparison.runs.items()
        }

    @property
    def rounds_in_words(self) -> str:
        """The rounds over which accuracy is averaged: in FedAvg, that of a single one swings by points."""
        rounds = self.curves[BASE].shape[1]
        return f"rounds {rounds // 2 + 1} to {rounds}"

    @cached_property
    def accuracies(self) -> dict[str, FloatArray]:
        """Method → mean accuracy over the second half of the rounds `[federations]`."""
        return {method: curve[:, curve.shape[1] // 2 :].mean(axis=1) for method, curve in self.curves.items()}

    @cached_property
    def cost(self) -> Difference:
        """What FedAvg loses to skew."""
        return Difference.of("cost of skew", self.accuracies[REFERENCE], self.accuracies[BASE])

    @cached_property
    def gains(self) -> dict[str, Difference]:
        """Method → its gain over FedAvg."""
        return {
            method: Difference.of(f"{method} over {BASE}", self.accuracies[method], self.accuracies[BASE])
            for method in METHODS
            if method not in (BASE, REFERENCE)
        }

    @cached_property
    def majority(self) -> dict[str, float | None]:
        """Method → share of the invited clients that belong to the majority; None without skew."""
        held = self._members_of_majority
        return {
            method: None
            if method == REFERENCE
            else float(
                np.mean(
                    [
                        inside[row["clients"]].mean()
                        for run, inside in zip(runs, held, strict=True)
                        for row in run.metrics
                    ]
                )
            )
            for method, runs in self.comparison.runs.items()
        }

    @cached_property
    def _members_of_majority(self) -> list[FloatArray]:
        return [_majority(run.config) for run in self.comparison.runs[BASE]]

    @property
    def sentence(self) -> str:
        """The answer: what skew costs, and what each method gains or loses."""
        clauses = [_gained(NAMES[method], gain, self.cost) for method, gain in self.gains.items()]
        return f"Over {self.rounds_in_words}, {_costs(self.cost)}; {', and '.join(clauses)}{self._reason}."

    @property
    def _reason(self) -> str:
        """Why the method named last loses, where it invites the majority more often than by chance."""
        last = list(self.gains)[-1]
        invited, held = self.majority[last], float(np.mean(self._members_of_majority))
        if self.gains[last].sign >= 0 or invited is None or invited < held + 0.1:
            return ""
        return (
            f": {100 * invited:.0f} % of its invitations go to the {100 * held:.0f} % of clients with the same digits"
        )

    def as_mapping(self) -> dict[str, Any]:
        """Return the answer and its numbers for JSON."""
        return {
            "question": self.question,
            "sentence": self.sentence,
            "command": self.command,
            "folder": str(self.comparison.folder),
            "seeds": [run.config.seed for run in self.comparison.runs[BASE]],
            "differences": [one.as_mapping() for one in (self.cost, *self.gains.values())],
            "methods": [
                {
                    "method": method,
                    "accuracies": values.tolist(),
                    "accuracy": Estimate.of(values.tolist()).mean,
                    "majority": self.majority[method],
                }
                for method, values in self.accuracies.items()
            ],
        }


def measure_skew_cost(
    seeds: Sequence[int], folder: Path, on_run: OnRun | None = None, on_round: OnRound | None = None
) -> SkewCost:
    """Run all methods on a federation of each seed, all runs in lockstep."""
    return SkewCost(
        compare(METHODS, list(seeds), given=SETTING, out=folder, on_run=on_run, on_round=on_round, progress=False)
    )


def _majority(config: Config) -> FloatArray:
    """Return 1 for clients of the majority, which hold the first classes, and 0 for others `[clients]`."""
    shares = build_federation(config).truth.shares
    inside: FloatArray = (shares[:, :LABELS].sum(axis=1) > 0.5).astype(np.float64)
    return inside


def _costs(cost: Difference) -> str:
    if cost.sign > 0:
        return f"skew costs FedAvg {cost.size} points of accuracy"
    if cost.sign < 0:
        return f"skew costs FedAvg nothing: it is {cost.size} points more accurate than without"
    return f"what skew costs FedAvg is within the noise ({cost.signed} points)"


def _gained(name: str, gain: Difference, cost: Difference) -> str:
    if gain.sign == 0:
        return f"the difference that {name} makes is within the noise ({gain.signed} points)"
    if cost.sign <= 0:
        return f"{name} is {gain.size} points {'above' if gain.sign > 0 else 'below'} FedAvg"
    if gain.sign < 0:
        return f"{name} loses another {gain.size}"
    if gain.estimate.mean > cost.estimate.mean:
        return f"{name} wins back more than that ({gain.size})"
    return f"{name} wins back {gain.size} of them"
