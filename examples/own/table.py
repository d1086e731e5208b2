"""Run federated learning on a table with a client column, as a CSV and as an NPZ file."""

import csv
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

import covey

wine = load_wine()
growers = np.random.default_rng(0).choice(["Abel", "Berta", "Carl", "Dora"], size=len(wine.target))

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    with (folder / "wine.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*wine.feature_names, "cultivar", "grower"])
        for row, label, grower in zip(wine.data, wine.target, growers, strict=True):
            table.writerow([*row, wine.target_names[label], grower])
    np.savez(folder / "wine.npz", x=wine.data, y=wine.target_names[wine.target], client=growers)

    for dataset in (
        {"name": "csv", "path": "wine.csv", "label": "cultivar", "client": "grower"},
        {"name": "npz", "path": "wine.npz"},
    ):
        run = covey.run(
            dataset=dataset,
            environment="natural",
            data_dir=name,
            cohort=4,
            rounds=15,
            local={"epochs": 2, "rate": 0.1},
            out=folder / str(dataset["name"]),
        )
        print(f"{dataset['name']}: {run.config.clients} growers, accuracy {run.metrics[-1]['accuracy']:.1%}")
