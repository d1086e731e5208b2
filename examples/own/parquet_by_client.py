"""A Parquet file with a client column, against plain PyTorch on the same rows in one place. Needs the extra parquet."""

import tempfile
from pathlib import Path

import numpy as np
import pandas
import torch
from torch.nn.functional import cross_entropy

import covey
from covey.data import parquet

rng = np.random.default_rng(0)
torch.manual_seed(0)
rows = pandas.DataFrame({"ward": rng.choice(["north", "south", "coast", "hills"], size=2400)})
rows["age"], rows["ph"] = rng.normal(60, 12, 2400), rng.normal(7.4, 0.1, 2400)
rows["colour"] = rng.choice(["red", "pink", "pale"], size=2400)
risk = (rows.age - 60) / 12 - (rows.ph - 7.4) / 0.1 + 1.5 * (rows.colour == "pale") + rng.logistic(size=2400) / 2
rows["label"] = np.where(risk > 0.5, "ill", "well")
rows.loc[::50, "ph"] = np.nan
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "patients.parquet"
    rows.sort_values("ward").to_parquet(file, row_group_size=200)
    run = covey.run(
        dataset={"name": str(file), "client": "ward"}, environment="natural", model="mlp", cohort=4, rounds=15,
        local={"epochs": 1, "batch": 20, "rate": 0.05}, out=Path(folder) / "run",
    )  # fmt: skip
    print(f"{run.config.clients} wards, accuracy {run.metrics[-1]['accuracy']:.1%}")
    data = parquet(None, path=str(file), client="ward")

x, test_x = ((part - torch.tensor(data.mean)) / torch.tensor(data.deviation) for part in (data.x, data.test_x))
net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for batch in (some for _ in range(15) for some in torch.randperm(len(x)).split(20)):
    optimizer.zero_grad()
    cross_entropy(net(x[batch].float()), data.y[batch]).backward()
    optimizer.step()
print(f"in one place, accuracy {(net(test_x.float()).argmax(dim=1) == data.test_y).float().mean():.1%}")
