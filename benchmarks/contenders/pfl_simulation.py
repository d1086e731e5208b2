"""pfl-research, in one process, or in several that share the cohort if started by torchrun."""

# mypy: disable-error-code="import-not-found,import-untyped", allow-subclassing-any, no-warn-return-any

import os
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.laps import Job, job
from benchmarks.workloads import load, network

_FOREVER = 1_000_000


class Task(nn.Module):
    """A network with the two methods that pfl requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.eval()
        return {"loss": Weighted(functional.cross_entropy(self.network(x), y, reduction="sum").item(), len(y))}


class Stopwatch(TrainingProcessCallback):
    """Times rounds, and stops all processes after the same round."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        # The first round also evaluates every user, before and after training.
        self.job.laps.ready = time.monotonic()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.job.laps.lap()
        processes = get_framework_module().distributed
        votes = torch.tensor([float(self.job.laps.enough and processes.global_rank == 0)])
        return bool(processes.all_reduce([votes])[0] > 0), Metrics()


def main(job: Job) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)
    torch.manual_seed(0)
    workload, data = job.workload, load(job.data)
    task = Task(network(workload))
    model = PyTorchModel(
        model=task,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(task.parameters(), lr=1.0),
    )
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset(data.client(user)),
        get_user_sampler("minimize_reuse", list(range(workload.clients))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=_FOREVER,
            evaluation_frequency=_FOREVER,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.rate,
            local_batch_size=workload.batch,
        ),
        callbacks=[Stopwatch(job)],
    )
    if get_framework_module().distributed.global_rank == 0:
        job.finish(data.loss(task.network))
    if torch.distributed.is_initialized():
        # On a normal exit the back end's threads sometimes abort the process, and torchrun then kills the other.
        torch.distributed.barrier()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(job())
