"""Every sentence of the demo is a claim and is true, over ten seeds of the whole demo.

A claim is true if its numbers are those of the records, computed without the demo's code, if flipped labels are those
of the samples, and if each difference has the same sign, clear of zero, over twenty federations that no demo uses. The
demo's settings were chosen on seeds that are not among these ten.
"""

from pathlib import Path

import numpy as np
import pytest

import covey
from covey import Config
from covey.job.comparison.statistics import Estimate
from covey.job.demo import run_demo
from covey.job.demo.skew_cost import METHODS, SETTING
from covey.job.lockstep_runs import run_together
from tests.job.demo.recomputed import DIGITS, claims, late_accuracy, on_mix

SEEDS = range(20, 30)
OTHERS = range(500, 520)
"""Seeds of federations: those of demos begin at 1000."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sentence_is_a_claim_and_true(seed, tmp_path):
    demo = run_demo(tmp_path / "demo", seed)
    for claim in claims(demo.as_mapping()):
        print(f"seed {seed}: {claim['sentence']} {claim['true']}")
        assert claim["true"], claim["sentence"]


def test_the_differences_are_there_in_other_federations(tmp_path):
    lines = [(method, seed) for method in METHODS for seed in OTHERS]
    places = {line: tmp_path / f"{line[0]}-{line[1]}" for line in lines}
    made = run_together(
        [(Config.of(SETTING, method=method, seed=seed), places[method, seed]) for method, seed in lines]
    )
    bases = [run for run, (method, _) in zip(made, lines, strict=True) if method == "covey"]
    late = {method: np.array([late_accuracy(places[method, seed]) for seed in OTHERS]) for method in METHODS}
    before, after, longer = [], [], []
    for run in bases:
        job = Path(f"{run.folder}-on-demand")
        covey.ondemand(run, DIGITS, estimator="analytic", rounds=20, continued=True, out=job)
        before.append(on_mix(run.folder))
        after.append(on_mix(job / "target-1"))
        longer.append(on_mix(job / "continued"))
    differences = {
        "skew costs": late["iid"] - late["fedavg"],
        "covey wins back": late["covey"] - late["fedavg"],
        "FedACS loses": late["fedavg"] - late["fedacs"],
        "on demand gains": np.array(after) - np.array(before),
        "on demand gains over more training": np.array(after) - np.array(longer),
    }
    for what, values in differences.items():
        found = Estimate.of(values.tolist())
        print(f"{what} {100 * found.mean:.1f} from {100 * (found.low or 0):.1f} to {100 * (found.high or 0):.1f}")
        assert found.low is not None and found.low > 0, what
    assert late["covey"].mean() <= late["iid"].mean()
