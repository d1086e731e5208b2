"""Regression by site: how a disease progresses, at eight hospitals; and the same network on all data in one place."""

import tempfile

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import covey

x, y = load_diabetes(return_X_y=True)
hospitals = np.argsort(np.argsort(x[:, 2] + np.random.default_rng(0).normal(0, 0.05, len(x)))) * 8 // len(x)

federation = covey.federation(x, y, hospitals, name="diabetes")
with tempfile.TemporaryDirectory() as folder:
    run = covey.run(
        federation=federation, task="regression", model={"name": "mlp", "hidden": (16,)}, rounds=20, cohort=8,
        local={"epochs": 1, "batch": 16, "rate": 0.02}, out=f"{folder}/run",
    )  # fmt: skip
    federated = run.metrics[-1]["metrics"]

data, task = federation.dataset, federation.dataset.task
scaled = [(part - torch.tensor(data.mean)) / torch.tensor(data.deviation) for part in (data.x, data.test_x)]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(20):
    for batch in torch.randperm(len(data.y)).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(scaled[0][batch]), data.y[batch]).backward()
        optimizer.step()
with torch.no_grad():
    together = task.score(model(scaled[1]), data.test_y)
print(f"federated:    RMSE {federated['rmse']:.1f}, R² {federated['r2']:.2f}")
print(f"in one place: RMSE {together['rmse']:.1f}, R² {together['r2']:.2f}")
