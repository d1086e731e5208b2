"""Flower's simulation (Ray): a client app and FedAvg as in Flower's PyTorch quickstart."""

# mypy: disable-error-code="import-not-found,import-untyped", allow-subclassing-any, no-warn-return-any

from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contenders.plain import train
from benchmarks.laps import Job, job
from benchmarks.workloads import Workload, load, network


class StrictFedAvg(FedAvg):
    """Flower's FedAvg, except that a failed client ends the run instead of shortening rounds."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if len(replies) < self.min_train_nodes or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"Not all of {self.min_train_nodes} clients answered.")
        return super().aggregate_train(server_round, replies)


def client_app(workload: Workload, folder: Path) -> ClientApp:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        module = network(workload)
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        x, y = load(folder).client(int(context.node_config["partition-id"]))
        train(module, x, y, workload)
        content = RecordDict(
            {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        )
        return Message(content=content, reply_to=message)

    return app


def server_app(job: Job) -> ServerApp:
    app = ServerApp()
    workload = job.workload

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        module = network(workload)
        arrays = ArrayRecord(module.state_dict())
        strategy = StrictFedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
        )
        while not job.laps.enough:
            arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1).arrays
            job.laps.lap()
        module.load_state_dict(arrays.to_torch_state_dict())
        job.finish(load(job.data).loss(module))

    return app


def main(job: Job) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run_simulation(
        server_app=server_app(job),
        client_app=client_app(job.workload, job.data),
        num_supernodes=job.workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": job.workers},
        },
    )


if __name__ == "__main__":
    main(job())
