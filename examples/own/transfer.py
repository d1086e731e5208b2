"""A frozen backbone with a trained head: only the head travels. Compared with plain PyTorch in one place."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import covey

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 4 - 2, torch.tensor(labels)


def trained(model, x, y, epochs):
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], 0.01)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
trained(nn.Sequential(backbone, nn.Linear(64, 5)), x[:400], y[:400] // 2, 20)  # Another task.
model = nn.Sequential(backbone.requires_grad_(False), nn.Linear(64, 10))

parts = torch.arange(1000) % 10
test = x[1400:], y[1400:]  # The backbone knows samples as they are: normalise=False.
federation = covey.federation(x[400:1400], y[400:1400], parts, test=test, normalise=False)
local = {"optimizer": "adam", "rate": 0.01, "batch": 50}
run = covey.run(federation=federation, model=model, method="fedavg", cohort=5, rounds=40, local=local)
print(f"federated, 40 rounds: {run.metrics[-1]['accuracy']:.1%}")
head = 4 * (64 * 10 + 10)
print(f"bytes a client sends: {run.metrics[0]['bytes_up'] // 5}, of which {head} are the head's")
assert head < run.metrics[0]["bytes_up"] / 5 < head + 400

right = trained(model, x[400:1400], y[400:1400], 20)(x[1400:]).argmax(dim=1) == y[1400:]
print(f"in one place, 20 epochs: {right.float().mean():.1%}")
