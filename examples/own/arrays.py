"""Run federated learning on arrays in memory: three sites that measure the same thing differently."""

import tempfile
from pathlib import Path

import numpy as np

import covey

rng = np.random.default_rng(0)
sites = np.repeat(["north", "south", "coast"], 200)
offset = {"north": -1.0, "south": 1.0, "coast": 0.0}
x = rng.normal(size=(600, 4)) + np.array([offset[site] for site in sites])[:, None]
y = np.where(x[:, 0] * x[:, 1] > 0, "alike", "opposed")

federation = covey.federation(x, y, clients=sites)
print(f"{federation.clients} clients: {', '.join(federation.names)}; {federation.sizes.tolist()} samples")

with tempfile.TemporaryDirectory() as folder:
    run = covey.run(
        federation=federation, cohort=2, rounds=20, local={"epochs": 2, "rate": 0.1}, out=Path(folder) / "run"
    )
    print(f"accuracy after {len(run.metrics)} rounds: {run.metrics[-1]['accuracy']:.1%}")
    print(f"by class: {run.evaluate()['class_accuracy']}")
