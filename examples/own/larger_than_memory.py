"""Train on a torch Dataset that is larger than the memory given: clients read their samples where they use them."""

import resource
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset

import covey


class Readings(Dataset[tuple[torch.Tensor, int]]):
    """400,000 readings of 500 numbers, 763 MiB, each made when it is read; a Dataset of files would open one."""

    targets = torch.arange(400_000) % 2
    difference = torch.randn(500, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(500, generator=torch.Generator().manual_seed(number + 1))
        return noise + (0.05 if number % 2 else -0.05) * self.difference, number % 2


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


federation = covey.federation(Readings(), clients=lambda number: number // 100, test=0.01)
before = peak()
with tempfile.TemporaryDirectory() as folder:
    settings = {"model": "mlp", "cohort": 20, "rounds": 5, "evaluate_every": 5, "local.epochs": 2, "local.rate": 0.02}
    run = covey.run(settings, federation=federation, host_memory_limit="64MiB", workers=1, out=Path(folder) / "run")
    print(f"{federation.clients:,} clients, accuracy {run.metrics[-1]['accuracy']:.1%}; {peak() - before:.0f} MiB used")
