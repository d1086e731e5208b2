"""A small transformer that reads digits row by row: trained by ten clients, and by plain PyTorch in one place."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import covey


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(8, 32), nn.Parameter(torch.zeros(8, 32))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        return {"logits": self.out(self.encoder(self.embed(x) + self.place).mean(dim=1))}


images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).view(-1, 8, 8) / 4 - 2
y = torch.tensor(labels)
torch.manual_seed(0)
model = Rows()

federation = covey.federation(x[:1400], y[:1400], torch.arange(1400) % 10, test=(x[1400:], y[1400:]))
local = {"optimizer": "adam", "rate": 0.003, "batch": 20, "epochs": 5}
run = covey.run(federation=federation, model=model, method="fedacs", cohort=4, rounds=12, local=local)
print(f"federated, 12 rounds: {run.metrics[-1]['accuracy']:.1%}")

optimizer = torch.optim.Adam(model.parameters(), 0.003)
for _ in range(8):
    for batch in torch.randperm(1400).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch])["logits"], y[batch]).backward()
        optimizer.step()
right = model.eval()(x[1400:])["logits"].argmax(dim=1) == y[1400:]
print(f"in one place, 8 epochs: {right.float().mean():.1%}")
