"""Several labels a sample, at ten sites; and the same network on all data in one place."""

import tempfile

import numpy as np
import torch
from sklearn.datasets import make_multilabel_classification
from torch import nn

import covey

x, y = make_multilabel_classification(2000, 20, n_classes=6, n_labels=2, random_state=0)
sites = np.argsort(np.argsort(x[:, 0] + np.random.default_rng(0).normal(0, 3, len(x)))) * 10 // len(x)

federation = covey.federation(x.astype(np.float32), y, sites, name="topics")
with tempfile.TemporaryDirectory() as folder:
    run = covey.run(
        federation=federation, task="multilabel", model={"name": "mlp", "hidden": (32,)}, rounds=30, cohort=5,
        local={"epochs": 2, "batch": 20, "rate": 0.3}, out=f"{folder}/run",
    )  # fmt: skip
    federated = run.metrics[-1]["metrics"]

data, task = federation.dataset, federation.dataset.task
scaled = [(part - torch.tensor(data.mean)) / torch.tensor(data.deviation) for part in (data.x, data.test_x)]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for _ in range(30):
    for batch in torch.randperm(len(data.y)).split(20):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(scaled[0][batch]), data.y[batch]).backward()
        optimizer.step()
with torch.no_grad():
    together = task.score(model(scaled[1]), data.test_y)
print(f"federated:    mean average precision {federated['map']:.1%}, F1 {federated['f1']:.1%}")
print(f"in one place: mean average precision {together['map']:.1%}, F1 {together['f1']:.1%}")
