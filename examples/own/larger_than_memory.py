"""A torch Dataset larger than the memory given, read where it is used; and plain PyTorch on as many samples."""

from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory

import torch

import covey


class Readings(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    targets = torch.arange(400_000) % 2  # Readings of 500 numbers, 763 MiB, each made when it is read.
    difference = 0.1 * torch.randn(500, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(500, generator=torch.Generator().manual_seed(number + 1))
        return noise + (number % 2 - 0.5) * self.difference, number % 2


data = covey.federation(Readings(), clients=lambda number: number // 100, test=0.01)
before = getrusage(RUSAGE_SELF).ru_maxrss
with TemporaryDirectory() as folder:
    settings = {"cohort": 20, "rounds": 5, "evaluate_every": 5, "local.epochs": 2, "workers": 1}
    run = covey.run(settings, federation=data, host_memory_limit="64MiB", out=f"{folder}/run")
    used = (getrusage(RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{data.clients:,} clients, accuracy {run.metrics[-1]['accuracy']:.1%}; {used} MiB used")

x, y, test_x, test_y = data.dataset.x[:9_900], data.dataset.y[:9_900], data.dataset.test_x[:], data.dataset.test_y
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(500, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for batch in torch.cat([torch.randperm(len(y)), torch.randperm(len(y))]).split(20):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
print(f"in one place, accuracy {(model(test_x).argmax(1) == test_y).float().mean():.1%}")
