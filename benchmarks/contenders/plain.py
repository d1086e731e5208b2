"""The yardstick: a plain FedAvg loop in PyTorch, one process and one thread."""

import copy

import torch
from torch import Tensor, nn

from benchmarks.laps import Job, job
from benchmarks.workloads import Workload, load, network


def main(job: Job) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload, data = job.workload, load(job.data)
    module, server = network(workload), network(workload)
    while not job.laps.enough:
        cohort = torch.randperm(workload.clients)[: workload.cohort].tolist()
        total: dict[str, Tensor] = {}
        for client in cohort:
            module.load_state_dict(server.state_dict())
            x, y = data.client(client)
            train(module, x, y, workload)
            for name, tensor in module.state_dict().items():
                total[name] = total[name].add_(tensor) if name in total else copy.deepcopy(tensor)
        server.load_state_dict({name: tensor / len(cohort) for name, tensor in total.items()})
        job.laps.lap()
    job.finish(data.loss(server))


def train(module: nn.Module, x: Tensor, y: Tensor, workload: Workload) -> None:
    """Train a client's local epochs."""
    optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate)
    loss_of = nn.CrossEntropyLoss()
    module.train()
    for _ in range(workload.epochs):
        order = torch.randperm(len(y))
        for at in range(0, len(y), workload.batch):
            batch = order[at : at + workload.batch]
            optimiser.zero_grad()
            loss_of(module(x[batch]), y[batch]).backward()
            optimiser.step()


if __name__ == "__main__":
    main(job())
