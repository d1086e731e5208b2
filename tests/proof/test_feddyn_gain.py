"""FedDyn reaches more than FedAvg where clients hold few classes: digits split by a Dirichlet(0.1), five seeds."""

from pathlib import Path

import pytest

import covey
from covey.job.comparison.statistics import Estimate

GIVEN = {
    "environment": {"name": "dirichlet", "alpha": 0.1},
    "clients": 20,
    "cohort": 5,
    "rounds": 30,
    "evaluate_every": 2,
    "local": {"epochs": 5, "batch": 20, "rate": 0.05},
}


@pytest.mark.proof
def test_feddyn_is_above_fedavg_and_clear_of_zero(tmp_path: Path) -> None:
    found = covey.compare(["fedavg", "feddyn"], seeds=5, given=GIVEN, out=tmp_path / "comparison")

    def ends(method: str) -> list[float]:
        """The mean of the last five evaluations of each seed."""
        return [sum(row["accuracy"] for row in run.metrics[1::2][-5:]) / 5 for run in found.runs[method]]

    gains = [mine - theirs for mine, theirs in zip(ends("feddyn"), ends("fedavg"), strict=True)]
    gain = Estimate.of(gains)
    print(f"FedDyn minus FedAvg: {gain.mean:+.3f}, from {gain.low:+.3f} to {gain.high:+.3f}; {gains}")
    assert gain.low is not None and gain.low > 0
